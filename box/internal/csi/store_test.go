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
	s := store{root: t.TempDir(), node: "node1"}
	for _, id := range []string{"", ".", "..", "a/b", "../x", "a\x00b", "a~b", strings.Repeat("x", 129)} {
		if _, err := s.volumeFile(id); !errors.Is(err, errBadID) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if got, err := s.volumeFile("pvc-1"); err != nil || filepath.Dir(got) != filepath.Join(s.root, "node1") {
		t.Errorf("%s, %v", got, err)
	}
}

func TestCreateIsIdempotentAndSparse(t *testing.T) {
	t.Parallel()
	s := store{root: filepath.Join(t.TempDir(), "volumes"), node: "node1"}
	const size = 64 << 20
	for range 2 {
		if err := s.createVolume(context.Background(), "v", volumeSpec{bytes: size, filesystem: true}); err != nil {
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
	if err := s.createVolume(context.Background(), "v", volumeSpec{bytes: 2 * size, filesystem: true}); !errors.Is(err, errDiffers) {
		t.Errorf("another size for the same volume: %v", err)
	}
}

// A volume that all nodes may write to is one file, whichever node made it, and no node detaches it from the others.
func TestShared_isOneVolumeOnAllNodes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	one, two := store{root: root, node: "node1"}, store{root: root, node: "node2"}
	for _, s := range []store{one, two} {
		if err := s.createVolume(context.Background(), "v", volumeSpec{bytes: 4096, shared: true}); err != nil {
			t.Fatal(err)
		}
	}
	first, shared, err := one.attachableFile("v")
	if err != nil || !shared {
		t.Fatalf("%s, %v, %v", first, shared, err)
	}
	if second, shared, err := two.attachableFile("v"); err != nil || !shared || second != first {
		t.Errorf("%s and %s, %v, %v", first, second, shared, err)
	}
	if found, err := two.findVolume("v"); err != nil || found != first {
		t.Errorf("found %s, %v", found, err)
	}
	if err := two.removeVolume("v"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// What a kill in the middle of a creation has left is not a volume, and is replaced.
func TestCreateOverRemains(t *testing.T) {
	t.Parallel()
	s := store{root: t.TempDir(), node: "node1"}
	dir := filepath.Join(s.root, s.node)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(dir, "v.img.new")
	if err := os.WriteFile(half, []byte(strings.Repeat("x", 1<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.createVolume(context.Background(), "v", volumeSpec{bytes: 4096}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "v.img"))
	if err != nil || len(got) != 4096 || strings.Trim(string(got), "\x00") != "" {
		t.Errorf("the volume is not blank: %d bytes, %v", len(got), err)
	}
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("the remains stay (%v)", err)
	}
}

func TestCheckClaim_refusesWhatVolumesCannotDo(t *testing.T) {
	t.Parallel()
	const (
		once, pod, many, readers = corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadWriteMany, corev1.ReadOnlyMany
	)
	source := &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "x"}
	for name, tc := range map[string]struct {
		spec    corev1.PersistentVolumeClaimSpec
		modes   []corev1.PersistentVolumeAccessMode
		refused map[string]string // by driver, part of the message
	}{
		"one node":            {modes: []corev1.PersistentVolumeAccessMode{once}},
		"one pod":             {modes: []corev1.PersistentVolumeAccessMode{pod}},
		"writers on all":      {modes: []corev1.PersistentVolumeAccessMode{many}},
		"readers of nothing":  {modes: []corev1.PersistentVolumeAccessMode{readers}, refused: map[string]string{DriverName: "empty", PlainDriverName: "empty"}},
		"readers and writers": {modes: []corev1.PersistentVolumeAccessMode{once, readers}, spec: corev1.PersistentVolumeClaimSpec{DataSource: source}, refused: map[string]string{DriverName: "no writer", PlainDriverName: "no writer"}},
		"readers":             {modes: []corev1.PersistentVolumeAccessMode{readers}, spec: corev1.PersistentVolumeClaimSpec{DataSource: source}, refused: map[string]string{PlainDriverName: "neither snapshots"}},
		"a source":            {modes: []corev1.PersistentVolumeAccessMode{once}, spec: corev1.PersistentVolumeClaimSpec{DataSource: source}, refused: map[string]string{PlainDriverName: "neither snapshots"}},
		"a selector":          {modes: []corev1.PersistentVolumeAccessMode{once}, spec: corev1.PersistentVolumeClaimSpec{Selector: &metav1.LabelSelector{}}, refused: map[string]string{DriverName: "claim Selector is not supported", PlainDriverName: "claim Selector is not supported"}},
	} {
		for _, d := range drivers {
			tc.spec.AccessModes = tc.modes
			err := checkClaim(&corev1.PersistentVolumeClaim{Spec: tc.spec}, d)
			if want := tc.refused[d.name]; (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: %v", name, d.name, err)
			}
		}
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
