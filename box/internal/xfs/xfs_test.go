package xfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/loop"
)

// wrongData is the mark of test/verdict, which this module cannot import.
const wrongData = "WRONG DATA: "

// mountNew makes a file system for the test. It needs root.
func mountNew(t *testing.T) (image, target string) {
	t.Helper()
	dir := t.TempDir()
	image, target = filepath.Join(dir, "volumes.xfs"), filepath.Join(dir, "volumes")
	t.Cleanup(func() {
		if err := Remove(context.Background(), image, target); err != nil {
			t.Error(err)
		}
	})
	if err := Ensure(t.Context(), image, target); err != nil {
		t.Fatal(err)
	}
	return image, target
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEnsure_mountsOnceAndKeepsFiles(t *testing.T) {
	t.Parallel()
	image, target := mountNew(t)
	write(t, filepath.Join(target, "kept"), "content")
	if err := Ensure(t.Context(), image, target); err != nil {
		t.Fatal(err)
	}
	if n, err := countMounts(image, target); err != nil || n != 1 {
		t.Errorf("it is mounted %d times, %v", n, err)
	}
	if err := Remove(t.Context(), image, target); err != nil {
		t.Fatal(err)
	}
	if _, err := loop.Find(image); !errors.Is(err, loop.ErrNotAttached) {
		t.Errorf("the loop device stays: %v", err)
	}
	if _, err := os.Stat(filepath.Join(target, "kept")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still mounted: %v", err)
	}
	if err := Remove(t.Context(), image, target); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := Ensure(t.Context(), image, target); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(target, "kept")); err != nil || string(got) != "content" {
		t.Errorf(wrongData+"%q, %v", got, err)
	}
}

func TestEnsure_makesASparseFileThatSharesBlocks(t *testing.T) {
	t.Parallel()
	image, target := mountNew(t)
	var st unix.Stat_t
	if err := unix.Stat(image, &st); err != nil || st.Size < leastBytes || st.Blocks*512 > 100<<20 {
		t.Errorf("%d bytes, %d on disk (%v)", st.Size, st.Blocks*512, err)
	}
	write(t, filepath.Join(target, "a"), "content")
	from, err := os.Open(filepath.Join(target, "a"))
	if err != nil {
		t.Fatal(err)
	}
	to, err := os.Create(filepath.Join(target, "b"))
	if err != nil {
		t.Fatal(err)
	}
	err = unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
	if err := errors.Join(err, from.Close(), to.Close()); err != nil {
		t.Error(err)
	}
}

// An interrupted run leaves a file without the final name.
func TestEnsure_replacesRemains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	half := filepath.Join(dir, ".volumes.xfs.123")
	write(t, half, "half")
	image, target := filepath.Join(dir, "volumes.xfs"), filepath.Join(dir, "volumes")
	if err := Ensure(t.Context(), image, target); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), image, target); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the remains stay: %v", err)
	}
}

func TestEnsure_saysThatAnImageIsDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	image, target := filepath.Join(dir, "volumes.xfs"), filepath.Join(dir, "volumes")
	write(t, image, strings.Repeat("garbage ", 8192))
	if err := Ensure(t.Context(), image, target); !errors.Is(err, ErrDamaged) {
		t.Errorf("%v", err)
	}
	if _, err := loop.Find(image); !errors.Is(err, loop.ErrNotAttached) {
		t.Errorf("its loop device stays: %v", err)
	}
}

func TestEnsure_refusesAnotherMount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(dir, "volumes")
	if err := errors.Join(os.Mkdir(target, 0o700), unix.Mount("tmpfs", target, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, 0); err != nil {
			t.Error(err)
		}
	})
	if err := Ensure(t.Context(), filepath.Join(dir, "volumes.xfs"), target); err == nil || !strings.Contains(err.Error(), "unmount it") {
		t.Errorf("%v", err)
	}
}

func TestEnsure_namesAKernelWithoutXFS(t *testing.T) {
	t.Parallel()
	if err := explainMount(unix.ENODEV, "i", "t"); !strings.Contains(err.Error(), "no XFS") || errors.Is(err, ErrDamaged) {
		t.Errorf("%v", err)
	}
}

// The mount is busy for as long as a file in it is in use.
func TestRemove_waitsForUsers(t *testing.T) {
	t.Parallel()
	image, target := mountNew(t)
	file := filepath.Join(target, "v.img")
	write(t, file, strings.Repeat("x", 1<<20))
	dev, err := loop.Attach(file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*unmountGap)
	defer cancel()
	if err := Remove(ctx, image, target); !errors.Is(err, unix.EBUSY) {
		t.Errorf("in use: %v", err)
	}
	released := time.AfterFunc(3*unmountGap, func() {
		if err := dev.Detach(); err != nil {
			t.Error(err)
		}
	})
	defer released.Stop()
	if err := Remove(t.Context(), image, target); err != nil {
		t.Errorf("released: %v", err)
	}
}

// Space that is freed in the file system returns to the disk that has the image.
func TestEnsure_returnsFreedSpace(t *testing.T) {
	t.Parallel()
	image, target := mountNew(t)
	const size = 64 << 20
	file := filepath.Join(target, "big")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write([]byte(strings.Repeat("x", size)))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	full := allocated(t, image)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		syncMount(t, target)
		now := allocated(t, image)
		if now < full-size*9/10 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes on disk, after %d", now, full)
		}
		time.Sleep(unmountGap)
	}
}

func syncMount(t *testing.T, target string) {
	t.Helper()
	d, err := os.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Syncfs(int(d.Fd())), d.Close()); err != nil {
		t.Fatal(err)
	}
}

func allocated(t *testing.T, file string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
