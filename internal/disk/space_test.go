package disk

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// A restore to a file without room for the data is not begun. This uses the test's real file system.
func TestTarget_withoutRoomIsNotBegun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	free := int64(st.Bavail) * st.Frsize
	for _, format := range []Format{Raw, QCOW2} {
		path := filepath.Join(dir, "new."+string(format))
		_, err := OpenTarget(t.Context(), path, 2*free, TargetOptions{Format: format, DataBytes: free + free/2, Journal: newTestJournal(t, JournalOptions{Token: "a"})})
		wantError(t, err, errclass.Exhausted, path, "MiB for the disk's data", "MiB free", "make space there, or choose another place")
		if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", format, left, err)
		}
	}
	// A large disk with little data fits.
	target, err := OpenTarget(t.Context(), filepath.Join(dir, "sparse"), 2*free, TargetOptions{DataBytes: mib})
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = OpenTarget(t.Context(), filepath.Join(dir, "no", "such"), mib, TargetOptions{DataBytes: mib})
	wantError(t, err, ErrNotFound, "there is no directory", dir)
}

// The space that a file already takes is reused: a restore that goes on, or that overwrites, needs no more.
func TestTarget_roomCountsWhatAFileTakes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, noise(8*mib, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		t.Fatal(err)
	}
	// The wide margin is for other tests, which write meanwhile.
	free, far := int64(st.Bavail)*st.Frsize, int64(1<<50)
	if err := checkRoom(path, info, 4*mib); err != nil {
		t.Error(err)
	}
	if err := checkRoom(path, info, free+far); err == nil {
		t.Error("there was room for more than there is")
	}
	used, err := allocatedBytes(path)
	if err != nil || used < 8*mib {
		t.Errorf("%d bytes are allocated: %v", used, err)
	}
}
