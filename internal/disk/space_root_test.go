//go:build root

package disk

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/loop"
)

// smallDisk mounts an ext4 file system of this size.
func smallDisk(t *testing.T, bytes int64) (dir string) {
	t.Helper()
	file, _ := sparseFile(t, bytes)
	device := loop.Device(t, file)
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Fatal("mkfs.ext4 is missing: install Debian's package e2fsprogs (hack/deps.sh interop)")
	}
	if out, err := exec.CommandContext(t.Context(), mkfs, "-q", "-m", "0", device).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir = t.TempDir()
	if err := unix.Mount(device, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, dir) })
	return dir
}

// unmount detaches a file system at once. It may still be busy: a child that another test starts holds every file that
// is open here, until the kernel closes them in the child's exec.
func unmount(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
}

// writeAll restores content region by region, and returns the first error.
func writeAll(t *testing.T, target Target, j *Journal, content []byte) (wrote int, err error) {
	t.Helper()
	for at := int64(0); at < int64(len(content)); at += j.o.RegionBytes {
		region := int(at / j.o.RegionBytes)
		if j.Done(region) {
			continue
		}
		if err := target.WriteAt(t.Context(), content[at:min(at+j.o.RegionBytes, int64(len(content)))], at); err != nil {
			return wrote, err
		}
		wrote++
		j.Finished(t.Context(), target, region)
	}
	return wrote, target.Sync(t.Context())
}

// fillUp takes the last block of a file system, so that not even a small file can be created. It returns the file that
// took it.
func fillUp(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "rest")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		if _, err = f.Write(make([]byte, 4*kib)); err == nil {
			err = f.Sync()
		}
	}
	if !errclass.IsFull(err) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// A file system fills up while a restore runs: the error says so, and the same restore goes on once there is space
// again.
func TestRestore_resumesAfterItsDiskWasFull(t *testing.T) {
	t.Parallel()
	for _, format := range []Format{Raw, QCOW2} {
		t.Run(string(format), func(t *testing.T) {
			t.Parallel()
			dir := smallDisk(t, 32*mib)
			filler := filepath.Join(dir, "filler")
			if err := os.WriteFile(filler, noise(12*mib, 2), 0o600); err != nil {
				t.Fatal(err)
			}
			path, content := filepath.Join(dir, "disk"), noise(20*mib, 1)
			open := func(data int64) (Target, *Journal, error) {
				j := newTestJournal(t, JournalOptions{Token: "a", Every: time.Hour})
				target, err := OpenTarget(t.Context(), path, int64(len(content)), TargetOptions{Format: format, Journal: j, DataBytes: data})
				return target, j, err
			}
			_, _, err := open(int64(len(content)))
			wantError(t, err, errclass.Exhausted, path, "needs 20 MiB")
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("something was made: %v", err)
			}

			target, j, err := open(0)
			if err != nil {
				t.Fatal(err)
			}
			wrote, err := writeAll(t, target, j, content)
			wantError(t, err, errclass.Exhausted, path, "make some and continue")
			rest := fillUp(t, dir)
			kept := j.Save(t.Context(), target)
			t.Logf("journal: %v; close: %v", kept, target.Close())
			if kept != nil && format == Raw { // qcow2 may have no space for its own tables
				t.Error("the journal was not written in its old place")
			}

			// Still full: the error comes before anything is done.
			_, _, err = open(int64(len(content)))
			wantError(t, err, errclass.Exhausted, path)
			if err := errors.Join(os.Remove(filler), os.Remove(rest)); err != nil {
				t.Fatal(err)
			}
			if target, j, err = open(int64(len(content))); err != nil {
				t.Fatal(err)
			}
			if done := j.DoneBytes(); kept == nil && (done < mib || done != int64(wrote)*j.o.RegionBytes) {
				t.Errorf("only %d bytes were done, of %d regions", done, wrote)
			}
			if _, err = writeAll(t, target, j, content); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(target.Close(), j.Remove()); err != nil {
				t.Fatal(err)
			}
			wantBytes(t, openSource(t, path, SourceOptions{Format: format}), content)
			if left, err := filepath.Glob(path + "*"); err != nil || len(left) != 1 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// If not even the journal can be begun, nothing is left behind.
func TestRestore_toAFullDiskLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, dir) })
	if err := os.WriteFile(filepath.Join(dir, "filler"), noise(mib, 3), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "disk")
	_, err := OpenTarget(t.Context(), path, mib, TargetOptions{Journal: newTestJournal(t, JournalOptions{Token: "a"})})
	wantError(t, err, errclass.Exhausted, path)
	if left, err := filepath.Glob(path + "*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
