package rawdisk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/varvebackup/varve/test/verdict"
)

const kib, mib, gib = 1 << 10, 1 << 20, 1 << 30

func TestBlank_sizeLeavesAReserve(t *testing.T) {
	t.Parallel()
	for available, want := range map[uint64]int64{
		0: 0, mib: 0, 2 * mib: mib, 100 * mib: 95 * mib, 10 * gib: 9728 * mib,
	} {
		if got := blankSize(available); got != want {
			t.Errorf("%d bytes available: %d, want %d", available, got, want)
		}
	}
}

func TestBlank_claimGetsASparseDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	// What a crash during creation leaves is not a disk.
	if err := os.WriteFile(path+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := EnsureFile(path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o444 != 0o444 {
		t.Errorf("mode %v: an export pod cannot read it", info.Mode())
	}
	if info.Size() == 0 || info.Size()%mib != 0 {
		t.Errorf("%d bytes, want whole MiB", info.Size())
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); !ok || sys.Blocks*512 > mib {
		t.Errorf("%d blocks of 512 bytes are allocated: it is not sparse", sys.Blocks)
	}
	if n, err := DataBytes(t.Context(), path, 64*kib); err != nil || n != 0 {
		t.Errorf("%d bytes of data, %v, want none", n, err)
	}
	if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary file: %v", err)
	}
}

func TestBlank_existingDiskIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := EnsureFile(path); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "content" {
		verdict.Errorf(t, "%q, %v", got, err)
	}
}

func TestBlank_refusesUnusableDisks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty, folder := filepath.Join(dir, "empty"), filepath.Join(dir, "folder")
	if err := errors.Join(os.WriteFile(empty, nil, 0o600), os.Mkdir(folder, 0o700)); err != nil {
		t.Fatal(err)
	}
	for path, ensure := range map[string]func(string) error{empty: EnsureFile, folder: EnsureFile, dir: EnsureDevice, "/dev/null": EnsureDevice} {
		if err := ensure(path); !errors.Is(err, ErrUnusable) {
			t.Errorf("%s: %v, want ErrUnusable", path, err)
		}
	}
	if err := EnsureDevice(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing device was accepted")
	}
}

func TestDataBytes_countsClusters(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(10 * mib); err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 4*kib)
	block[0] = 1
	// Two in one cluster, one within a cluster, one at the very end.
	for _, at := range []int64{64 * kib, 96 * kib, 5 * mib, 10*mib - 4*kib} {
		if _, err := f.WriteAt(block, at); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := DataBytes(t.Context(), f.Name(), 64*kib); err != nil || got != 3*64*kib {
		t.Errorf("%d bytes, %v, want three clusters, %d", got, err, 3*64*kib)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := DataBytes(ctx, f.Name(), 64*kib); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancel: %v", err)
	}
}
