package moverpod

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kopia/kopia/repo/blob"
	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// loseLargest removes the largest pack of data.
func (s *site) loseLargest(t *testing.T) {
	t.Helper()
	st, err := s.at.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	packs, err := storage.ListBlobs(t.Context(), st, "p")
	if err != nil || len(packs) == 0 {
		t.Fatalf("packs: %v, %v", packs, err)
	}
	var largest blob.Metadata
	for _, b := range packs {
		if b.Length > largest.Length {
			largest = b
		}
	}
	if err := errors.Join(st.DeleteBlob(t.Context(), largest.BlobID), st.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// A DataUpload that ends Completed can be restored, whatever the repository has lost of what it has in common with earlier ones.
func TestUpload_storesAgainWhatTheRepositoryLost(t *testing.T) {
	t.Parallel()
	t.Run("device", func(t *testing.T) {
		t.Parallel()
		s, dir := newSite(t), t.TempDir()
		device, other := filepath.Join(dir, "device"), filepath.Join(dir, "other")
		content := writeSparse(t, device, 24*mib, map[int64][]byte{0: noise(24*mib, 1)})
		s.upload(t, corev1.PersistentVolumeBlock, device)
		s.loseLargest(t)
		report := s.upload(t, corev1.PersistentVolumeBlock, device)
		if report.StoredBytes < 3*mib || report.StoredBytes > 23*mib {
			t.Errorf("%+v, want that of the lost pack alone stored again", report)
		}
		writeSparse(t, other, int64(len(content)), nil)
		s.newPod(t, newDownload(corev1.PersistentVolumeBlock, report.SnapshotID), other).run(t, datamove.Succeeded)
		wantContent(t, other, content)
	})
	t.Run("files", func(t *testing.T) {
		t.Parallel()
		s, volume, back := newSite(t), t.TempDir(), t.TempDir()
		for name, seed := range map[string]uint64{"a": 1, "b": 2} {
			if err := os.WriteFile(filepath.Join(volume, name), noise(3*mib, seed), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		s.newPod(t, newUpload(filesystem), volume).run(t, datamove.Succeeded)
		s.loseLargest(t)
		report := s.newPod(t, newUpload(filesystem), volume).run(t, datamove.Succeeded)
		s.newPod(t, newDownload(filesystem, report.SnapshotID), back).run(t, datamove.Succeeded)
		for name, seed := range map[string]uint64{"a": 1, "b": 2} {
			wantContent(t, filepath.Join(back, name), noise(3*mib, seed))
		}
	})
}
