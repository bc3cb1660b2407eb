package data

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/varvebackup/varve/internal/datamove"
)

// An image needs room for the file system around it, a device does not, and of files nobody knows.
func TestClaimBytes(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	disk := datamove.SnapshotID{Form: datamove.Disk, Point: strings.Repeat("0a", 16), Namespace: "app"}.String()
	files := datamove.SnapshotID{Form: datamove.Files, Point: strings.Repeat("0a", 16), Namespace: "app"}.String()
	for _, c := range []struct {
		id     string
		mode   corev1.PersistentVolumeMode
		stored int64
		want   int64 // 0: it is refused
	}{
		{disk, corev1.PersistentVolumeBlock, 10 * gib, 10 * gib},
		{disk, corev1.PersistentVolumeFilesystem, 100 * mib, 170 * mib},
		{disk, corev1.PersistentVolumeFilesystem, 4 * gib, 4406 * mib},
		{disk, corev1.PersistentVolumeFilesystem, 512, 65 * mib},
		{disk, corev1.PersistentVolumeFilesystem, 64 << 40, 71_135_460 * mib},
		{files, corev1.PersistentVolumeFilesystem, 12, 0},
		{files, corev1.PersistentVolumeBlock, 12, 0},
	} {
		got, err := claimBytes(c.id, string(c.mode), c.stored)
		if c.want == 0 {
			if err == nil || !strings.Contains(err.Error(), "--create-claim needs --size: files are stored") {
				t.Errorf("files: %d bytes, %v", got, err)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%d bytes on a %s claim: %d MiB, want %d (%v)", c.stored, c.mode, got/mib, c.want/mib, err)
		}
	}
}

// Without --size, a claim of files is refused before anything is created.
func TestDownload_claimOfFilesNeedsASize(t *testing.T) {
	t.Parallel()
	files := datamove.SnapshotID{Form: datamove.Files, Point: strings.Repeat("0a", 16), Namespace: "app"}.String()
	r := &downloadRequest{
		snapshotID: files, bytes: 12, claim: "data", namespace: "app", create: true,
		mode: string(corev1.PersistentVolumeFilesystem),
	}
	if claim, err := r.newClaim(); err == nil {
		t.Errorf("claim %v", claim)
	}
	r.sizeQuantity = resource.MustParse("20Gi")
	if _, err := r.newClaim(); err != nil {
		t.Error(err)
	}
}
