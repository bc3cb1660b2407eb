package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStoreIDs(t *testing.T) {
	t.Parallel()
	s := store{dir: t.TempDir()}
	for _, id := range []string{"", ".", "..", "a/b", "../x", "a\x00b"} {
		if _, err := s.volumeFile(id); !errors.Is(err, errBadID) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if got, err := s.volumeFile("pvc-1"); err != nil || filepath.Dir(got) != s.dir {
		t.Errorf("%s, %v", got, err)
	}
}

func TestCreateIsIdempotentAndSparse(t *testing.T) {
	t.Parallel()
	s := store{dir: filepath.Join(t.TempDir(), "volumes")}
	const size = 64 << 20
	for range 2 {
		if err := s.createVolume(context.Background(), "v", size, true); err != nil {
			t.Fatal(err)
		}
	}
	file, err := s.volumeFile("v")
	if err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil || st.Size != size || st.Blocks*512 > 8<<20 {
		t.Errorf("%d bytes, %d on disk (%v)", st.Size, st.Blocks*512, err)
	}
	data := make([]byte, 2)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(data, 1024+56); err != nil || string(data) != "\x53\xef" { // ext4's magic in its superblock
		t.Errorf("no ext4: %x, %v", data, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.createVolume(context.Background(), "v", 2*size, true); err == nil {
		t.Error("another size for the same volume is accepted")
	}
}

// What a kill in the middle of a creation has left is not a volume, and is replaced.
func TestCreateOverRemains(t *testing.T) {
	t.Parallel()
	s := store{dir: t.TempDir()}
	half := filepath.Join(s.dir, "v.img.new")
	if err := os.WriteFile(half, []byte(strings.Repeat("x", 1<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.createVolume(context.Background(), "v", 4096, false); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(s.dir, "v.img"))
	if err != nil || len(got) != 4096 || strings.Trim(string(got), "\x00") != "" {
		t.Errorf("the volume is not blank: %d bytes, %v", len(got), err)
	}
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("the remains stay (%v)", err)
	}
}

func TestAcceptable(t *testing.T) {
	t.Parallel()
	for mode, ok := range map[corev1.PersistentVolumeAccessMode]bool{
		corev1.ReadWriteOnce: true, corev1.ReadWriteOncePod: true, corev1.ReadWriteMany: false, corev1.ReadOnlyMany: false,
	} {
		claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{mode}}}
		if err := checkClaim(claim); (err == nil) != ok {
			t.Errorf("%s: %v", mode, err)
		}
	}
	clone := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{DataSource: &corev1.TypedLocalObjectReference{Name: "x"}}}
	if checkClaim(clone) == nil {
		t.Error("a data source is accepted, and would be ignored")
	}
}

// For every claim, exactly one node is responsible.
func TestShouldProvision(t *testing.T) {
	t.Parallel()
	for chosen, want := range map[string]string{"": "node1", "node1": "node1", "node2": "node2"} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{selectedNode: chosen}}}
		for _, node := range []string{"node1", "node2"} {
			p := &provisioner{node: node}
			if got := p.ShouldProvision(context.Background(), claim); got != (node == want) {
				t.Errorf("chosen %q: %s says %v", chosen, node, got)
			}
		}
	}
}

func TestRoundUp(t *testing.T) {
	t.Parallel()
	for in, want := range map[int64]int64{1: 4096, 4096: 4096, 4097: 8192, 1 << 30: 1 << 30} {
		if got := roundUp(in); got != want {
			t.Errorf("%d: %d", in, got)
		}
	}
}
