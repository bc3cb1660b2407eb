//go:build root

package loop_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/loop"
	testloop "github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

var devices = loop.Devices{Dir: "/dev", Clock: clock.RealClock{}}

// makeFile makes a sparse file.
func makeFile(t *testing.T, path string, bytes int64) string {
	t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, nil, 0o600), os.Truncate(path, bytes))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// detach detaches a device.
func detach(t *testing.T, d loop.Device) {
	t.Helper()
	if err := devices.Detach(context.WithoutCancel(t.Context()), d); err != nil {
		t.Error(err)
	}
}

func TestDevices_areFoundByFileAndName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, name := makeFile(t, filepath.Join(dir, "a/file"), 1<<20), filepath.Base(filepath.Dir(dir))[:40]
	if _, err := devices.Find(file); !errors.Is(err, errclass.NotFound) {
		t.Errorf("find what is not attached: %v", err)
	}
	attached, err := devices.Attach(t.Context(), file, name, loop.SmallSector)
	if err != nil {
		t.Fatal(err)
	}
	defer detach(t, attached)
	if again, err := devices.Attach(t.Context(), file, name, loop.SmallSector); err != nil || again != attached {
		t.Errorf("attach again: %v, %v, want %v", again, err, attached)
	}
	moved := filepath.Join(dir, "a/moved")
	if err := os.Rename(file, moved); err != nil {
		t.Fatal(err)
	}
	if found, err := devices.Find(moved); err != nil || found != attached {
		t.Errorf("find by file: %v, %v, want %v", found, err, attached)
	}
	if found, err := devices.FindName(name); err != nil || found != attached {
		t.Errorf("find by name: %v, %v, want %v", found, err, attached)
	}
	for path, want := range map[string]int{"a": 1, ".": 1, "missing": 0} {
		if found, err := devices.Below(filepath.Join(dir, path)); err != nil || len(found) != want {
			t.Errorf("below %s: %v, %v", path, found, err)
		}
	}
	detach(t, attached)
	if _, err := devices.FindName(name); !errors.Is(err, errclass.NotFound) {
		t.Errorf("find what is detached: %v", err)
	}
	detach(t, attached) // which is no error
}

func TestDevices_writeToTheFile(t *testing.T) {
	t.Parallel()
	file := makeFile(t, filepath.Join(t.TempDir(), "file"), 1<<20)
	d, err := devices.Attach(t.Context(), file, "varve-test-write", loop.SmallSector)
	if err != nil {
		t.Fatal(err)
	}
	defer detach(t, d)
	sector, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := unix.IoctlGetInt(int(sector.Fd()), unix.BLKSSZGET); n != 512 || err != nil {
		t.Errorf("sectors of %d bytes, %v", n, err)
	}
	want := bytes.Repeat([]byte("x"), 8192)
	_, err = sector.WriteAt(want, 4096)
	if err = errors.Join(err, sector.Close()); err != nil {
		t.Fatal(err)
	}
	detach(t, d)
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got[4096:12288], want) {
		verdict.Errorf(t, "the file does not have what was written to its device: %v", err)
	}
}

// The device of a clone goes past the page cache only with sectors of 4096 bytes.
func TestAttach_isDirectWithBlockSectors(t *testing.T) {
	t.Parallel()
	dir := testloop.NewFileSystem(t, "xfs").Dir
	original := filepath.Join(dir, "original")
	if err := os.WriteFile(original, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name       string
		bytes      int64
		sector     int
		wantSector int
		wantDirect string
	}{
		{"varve-test-small", 1 << 20, loop.SmallSector, 512, ""},
		{"varve-test-block", 1 << 20, loop.BlockSector, 4096, "1"},
		{"varve-test-odd", 1<<20 - 512, loop.BlockSector, 512, ""},
	}
	for _, x := range cases {
		file := cloneFile(t, original, filepath.Join(dir, x.name), x.bytes)
		d, err := devices.Attach(t.Context(), file, x.name, x.sector)
		if err != nil {
			t.Fatal(err)
		}
		defer detach(t, d)
		device, err := os.Open(d.Path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := unix.IoctlGetInt(int(device.Fd()), unix.BLKSSZGET)
		end, seekErr := device.Seek(0, io.SeekEnd)
		if err := errors.Join(err, seekErr, device.Close()); n != x.wantSector || end != x.bytes || err != nil {
			t.Errorf("%s: %d bytes in sectors of %d, %v, want %d in %d", x.name, end, n, err, x.bytes, x.wantSector)
		}
		direct, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(d.Path), "loop/dio"))
		if got := strings.TrimSpace(string(direct)); err != nil || x.wantDirect != "" && got != x.wantDirect {
			t.Errorf("%s: direct I/O is %q, %v, want %q", x.name, got, err, x.wantDirect)
		}
	}
}

// cloneFile makes a clone of the first bytes of a file.
func cloneFile(t *testing.T, from, to string, bytes int64) string {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	clone, err := os.Create(to)
	if err == nil {
		err = errors.Join(unix.IoctlFileClone(int(clone.Fd()), int(source.Fd())), clone.Truncate(bytes), clone.Close())
	}
	if err := errors.Join(err, source.Close()); err != nil {
		t.Fatal(err)
	}
	return to
}

// A size that the device would not show to its end, and a name that it cannot have, are refused.
func TestAttach_refuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	odd, even := makeFile(t, filepath.Join(dir, "odd"), 1000), makeFile(t, filepath.Join(dir, "even"), 1024)
	for _, x := range []struct{ file, name string }{{odd, "a"}, {even, ""}, {even, string(make([]byte, 64))}} {
		if d, err := devices.Attach(t.Context(), x.file, x.name, loop.SmallSector); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%s as %q: %v, %v", x.file, x.name, d, err)
		}
	}
	_, err := devices.Attach(t.Context(), filepath.Join(dir, "missing"), "a", loop.SmallSector)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
}

// Detach returns when nobody has the device any more, and says so if somebody has it for too long.
func TestDetach_waitsForUsers(t *testing.T) {
	t.Parallel()
	file := makeFile(t, filepath.Join(t.TempDir(), "file"), 1<<20)
	d, err := devices.Attach(t.Context(), file, "varve-test-users", loop.SmallSector)
	if err != nil {
		t.Fatal(err)
	}
	defer detach(t, d)
	user, err := os.Open(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := devices.Detach(ctx, d); !errors.Is(err, errclass.Transient) {
		t.Errorf("a device that is open: %v", err)
	}
	done := make(chan error)
	go func() { done <- devices.Detach(context.WithoutCancel(t.Context()), d) }()
	if err := user.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A disk that dies hides no device of another one, and its own devices are found by name and detached.
func TestDevices_surviveADeadDisk(t *testing.T) {
	t.Parallel()
	other := makeFile(t, filepath.Join(t.TempDir(), "file"), 1<<20)
	healthy, err := devices.Attach(t.Context(), other, "varve-test-healthy", loop.SmallSector)
	if err != nil {
		t.Fatal(err)
	}
	defer detach(t, healthy)
	dead := testloop.NewFileSystem(t, "xfs")
	const name = "varve-test-dead"
	file := makeFile(t, filepath.Join(dead.Dir, name, "head"), 1<<20)
	attached, err := devices.Attach(t.Context(), file, name, loop.SmallSector)
	if err != nil {
		t.Fatal(err)
	}
	defer detach(t, attached)
	dead.ShutDown(t)
	if found, err := devices.FindName("varve-test-healthy"); err != nil || found != healthy {
		t.Errorf("the device of a healthy disk: %v, %v", found, err)
	}
	if _, err := devices.Find(file); !errors.Is(err, unix.EIO) {
		t.Errorf("by a file that is out of reach: %v", err)
	}
	found, err := devices.FindName(name)
	if err != nil || found.Path != attached.Path || found.Name != name {
		t.Fatalf("by name: %v, %v, want %v", found, err, attached)
	}
	for _, device := range []loop.Device{found, attached} {
		if err := devices.Detach(t.Context(), device); err != nil {
			t.Error(err)
		}
		if _, err := devices.FindName(name); !errors.Is(err, errclass.NotFound) {
			t.Errorf("after Detach: %v", err)
		}
	}
}
