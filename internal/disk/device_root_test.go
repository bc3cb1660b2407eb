//go:build root

package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

func TestDevice_isRead(t *testing.T) {
	t.Parallel()
	file, content := sparseFile(t, 2*mib+512, extent.Extent{Offset: mib, Length: 100})
	device := loop.Device(t, file)
	s := openSource(t, device, SourceOptions{})
	wantBytes(t, s, content)
	if data, err := s.Data(t.Context()); data != nil || err != nil {
		t.Errorf("data of a device: %v, %v", data, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("device:%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)); s.Identity() != want {
		t.Errorf("identity %s, want %s", s.Identity(), want)
	}
}

func TestDevice_isWritten(t *testing.T) {
	t.Parallel()
	const size = 2*mib - 300 // not a whole sector
	file, content := sparseFile(t, 4*mib, extent.Extent{Length: 4 * mib})
	device := loop.Device(t, file)
	for _, c := range []struct {
		bytes int64
		o     TargetOptions
		class error
		text  string
	}{
		{4*mib + 1, TargetOptions{Overwrite: true, Larger: true}, errclass.Invalid, "has 4194304 bytes, too few for a disk of 4194305 bytes"},
		{size, TargetOptions{Overwrite: true}, errclass.Invalid, "allow a larger target"},
		{4 * mib, TargetOptions{}, errclass.Conflict, "may have content"},
		{4 * mib, TargetOptions{Overwrite: true, Format: QCOW2}, errclass.Invalid, "restore raw"},
	} {
		_, err := OpenTarget(t.Context(), device, c.bytes, c.o)
		wantError(t, err, c.class, device, c.text)
	}
	// The device has no name of its own, so another one may be there by now: no region ever counts as done.
	for range 2 {
		j := newTestJournal(t, JournalOptions{Path: filepath.Join(t.TempDir(), "j"), Token: "a", Every: time.Nanosecond})
		target, err := OpenTarget(t.Context(), device, size, TargetOptions{Overwrite: true, Larger: true, Journal: j})
		if err != nil {
			t.Fatal(err)
		}
		_, err = OpenTarget(t.Context(), device, size, TargetOptions{Overwrite: true, Larger: true})
		wantError(t, err, errclass.Conflict, device, "in use")
		_, err = OpenSource(t.Context(), device, SourceOptions{})
		wantError(t, err, errclass.Conflict, device, "target of a restore that runs")
		copy(content, noise(100*kib, 7))
		clear(content[100*kib : size])
		if wrote := restore(t, target, j, content[:size], 1000); wrote != 32 {
			t.Errorf("%d regions were written", wrote)
		}
		if err := errors.Join(target.Zero(t.Context(), extent.Extent{Offset: mib + 1, Length: size - mib - 1}),
			j.Save(t.Context(), target), target.Sync(t.Context()), target.Close()); err != nil {
			t.Fatal(err)
		}
	}
	wantBytes(t, openSource(t, device, SourceOptions{}), content)
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, content) {
		verdict.Errorf(t, "the file has other bytes (%v)", err)
	}
	if got := used(t, file); got > 2*mib+200*kib {
		t.Errorf("%d bytes are allocated: the zeroes were not punched", got)
	}
}

func TestMountedDevice_isNeitherReadNorOverwritten(t *testing.T) {
	t.Parallel()
	file, _ := sparseFile(t, 4*mib)
	device := loop.Device(t, file)
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Fatal("mkfs.ext4 is missing: install Debian's package e2fsprogs (hack/deps.sh interop)")
	}
	if out, err := exec.CommandContext(context.Background(), mkfs, "-q", device).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	if err := unix.Mount(device, dir, "ext4", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err = OpenTarget(t.Context(), device, 4*mib, TargetOptions{Overwrite: true})
	wantError(t, err, errclass.Conflict, device, "mounted", "unmount")
	_, err = OpenSource(t.Context(), device, SourceOptions{})
	wantError(t, err, errclass.Conflict, device, "mounted", "unmount", "snapshot")
	source, err := OpenSource(t.Context(), device, SourceOptions{IgnoreLocks: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	// A process that has made its own mount namespace meanwhile, as other tests do, keeps the mount until it ends.
	var target Target
	err = wait.For(t.Context(), 2*time.Minute, "the mount to be gone", func(context.Context) (bool, string, error) {
		target, err = OpenTarget(t.Context(), device, 4*mib, TargetOptions{Overwrite: true})
		if errors.Is(err, errclass.Conflict) {
			return false, err.Error(), nil
		}
		return true, "", err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}
