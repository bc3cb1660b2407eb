package target

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/manifest"
	"github.com/varvebackup/varve/test/verdict"
)

// open opens a directory as if it were mounted.
func open(t *testing.T, dir string) *Volume {
	t.Helper()
	info := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(info, fmt.Appendf(nil, "1 2 3:4 /x %s rw,relatime shared:1 - ext4 /dev/x rw\n", dir), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := Open(dir, info)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

func example(uid string) manifest.Manifest {
	return manifest.Manifest{
		Namespace: "ns", VM: "vm", Backup: manifest.Backup{Name: "b", UID: uid}, PointInTime: time.Unix(1, 0),
		Volumes: []manifest.Volume{{Name: "root", Type: manifest.Full, File: "root.qcow2", SHA256: strings.Repeat("ab", 32)}},
	}
}

// backup makes a complete backup on the volume.
func backup(t *testing.T, v *Volume, directory, uid string) {
	t.Helper()
	if err := v.Begin(directory, uid); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(v.Path(PartialFile(directory, "root")), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Commit(directory, example(uid)); err != nil {
		t.Fatal(err)
	}
}

func TestOpen_acceptsOnlyAWritableMount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "vm"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mountInfo string
		ok        bool
	}{
		"mounted":             {"1 2 3:4 / %s rw - ext4 /dev/x rw", true},
		"parent is mounted":   {"1 2 3:4 / %.3s rw - ext4 /dev/x rw", false},
		"mounted read-only":   {"1 2 3:4 / %s ro,relatime - ext4 /dev/x rw", false},
		"read-only below":     {"1 2 3:4 / %s rw - ext4 /dev/x ro,errors=continue", false},
		"not a mount at all":  {"%.0s", false},
		"mount over a mount":  {"1 2 3:4 / %[1]s ro - ext4 /dev/x rw\n1 2 3:4 / %[1]s rw - ext4 /dev/y rw", true},
		"a directory in it":   {"1 2 3:4 / %s/vm rw - ext4 /dev/x rw", true},
		"one, read-only":      {"1 2 3:4 / %s/vm ro - ext4 /dev/x rw", false},
		"something deeper":    {"1 2 3:4 / %s/vm/x rw - ext4 /dev/x rw", false},
		"with optional words": {"1 2 3:4 /r %s rw master:3 shared:9 - nfs4 host:/x rw,vers=4", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			info := filepath.Join(t.TempDir(), "mountinfo")
			if err := os.WriteFile(info, fmt.Appendf(nil, c.mountInfo, dir), 0o600); err != nil {
				t.Fatal(err)
			}
			v, err := Open(dir, info)
			if (err == nil) != c.ok {
				t.Fatalf("%v", err)
			}
			if err != nil {
				if !errors.Is(err, ErrInvalid) {
					t.Errorf("class of %v", err)
				}
				return
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := Open(filepath.Join(dir, "missing"), MountInfo); !errors.Is(err, ErrInvalid) {
		t.Errorf("a missing directory: %v", err)
	}
	// The kernel's own table can be parsed.
	if _, err := Open(dir, MountInfo); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "nothing is mounted") {
		t.Errorf("an ordinary directory: %v", err)
	}
}

// openMachine opens a directory as if its subdirectory were the machine's, and mounted.
func openMachine(t *testing.T, dir, machine string) *Volume {
	t.Helper()
	info := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(info, fmt.Appendf(nil, "1 2 3:4 / %s/%s rw - ext4 /dev/x rw\n", dir, machine), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := Open(dir, info)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

func TestMachine_backupsAreWhereTheyAreOnTheVolume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "vm"), 0o755); err != nil {
		t.Fatal(err)
	}
	v := openMachine(t, dir, "vm")
	for _, elsewhere := range []string{"other/b1", "vm", "vm2/b1"} {
		if err := v.Begin(elsewhere, "u1"); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "only the directory vm is mounted") {
			t.Errorf("a backup in %s: %v", elsewhere, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("beside the machine's directory: %v %v", entries, err)
	}
	backup(t, v, "vm/b1", "u1")
	whole := open(t, dir)
	if m, _, err := whole.Manifest("vm/b1"); err != nil || m.Backup.UID != "u1" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := v.FreeBytes(); err != nil {
		t.Error(err)
	}
}

// What is mounted cannot be removed, and its removal from the claim would cost the next backup its directory.
func TestMachine_discardLeavesWhatIsMounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "vm"), 0o755); err != nil {
		t.Fatal(err)
	}
	v := openMachine(t, dir, "vm")
	if err := errors.Join(v.Begin("vm/b1", "u1"), v.Discard(t.Context(), "vm/b1")); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "vm")); err != nil || len(entries) != 0 {
		t.Errorf("left is %v, %v", entries, err)
	}
}

// FreeBytes is the volume's, not that of what its directory is mounted in.
func TestMachine_freeSpaceIsTheVolumes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "vm"), 0o755); err != nil {
		t.Fatal(err)
	}
	v := openMachine(t, dir, "vm")
	if err := os.Remove(filepath.Join(dir, "vm")); err != nil {
		t.Fatal(err)
	}
	if free, err := v.FreeBytes(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without what is mounted: %d, %v", free, err)
	}
}

func TestOpen_unescapesMountPoints(t *testing.T) {
	t.Parallel()
	m, ok, err := findMount(strings.NewReader(`1 2 3:4 / /a\040b\134c rw - ext4 x rw`), `/a b\c`)
	if err != nil || !ok || m.readOnly {
		t.Errorf("%+v, %v, %v", m, ok, err)
	}
	if _, _, err := findMount(strings.NewReader("nonsense"), "/"); err == nil {
		t.Error("nonsense was understood")
	}
}

func TestVolume_backupAppearsWhenItIsComplete(t *testing.T) {
	t.Parallel()
	v := open(t, t.TempDir())
	if err := v.Begin("vm/b1", "u1"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.Manifest("vm/b1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	backup(t, v, "vm/b1", "u1") // the leftovers of the first attempt are removed
	m, _, err := v.Manifest("vm/b1")
	if err != nil || m.Backup.UID != "u1" {
		t.Errorf("%+v, %v", m, err)
	}
	read := 0
	sealed, err := v.Seal(t.Context(), "vm/b1/root.qcow2", func(n int) { read += n })
	const ofData = "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"
	if err != nil || sealed.SHA256 != ofData || sealed.AllocatedBytes == 0 || read != len("data") {
		verdict.Errorf(t, "%+v after %d bytes, %v", sealed, read, err)
	}
	if err := v.Begin("vm/b1", "another"); !errors.Is(err, ErrInvalid) {
		t.Errorf("over another backup: %v", err)
	}
	if err := v.Discard(t.Context(), "vm/b1"); err != nil {
		t.Error(err)
	}
	if _, _, err := v.Manifest("vm/b1"); err != nil {
		t.Errorf("a complete backup was discarded: %v", err)
	}
}

func TestSeal_freesZeroes(t *testing.T) {
	t.Parallel()
	v := open(t, t.TempDir())
	if err := v.Begin("vm/b1", "u1"); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 3*hashBuffer+1)
	copy(data[hashBuffer:], "data")
	name := PartialFile("vm/b1", "root")
	if err := os.WriteFile(v.Path(name), data, 0o600); err != nil {
		t.Fatal(err)
	}
	sealed, err := v.Seal(t.Context(), name, func(int) {})
	if err != nil || sealed.AllocatedBytes == 0 || sealed.AllocatedBytes > holeBytes+4<<10 { // the last block is only partly used
		t.Errorf("%+v, %v", sealed, err)
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(data)); sealed.SHA256 != want {
		verdict.Errorf(t, "hash %s, want %s", sealed.SHA256, want)
	}
	if got, err := os.ReadFile(v.Path(name)); err != nil || !bytes.Equal(got, data) {
		verdict.Errorf(t, "the content changed (%v)", err)
	}
}

func TestVolume_discardLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v := open(t, dir)
	if err := v.Begin("vm/b1", "u1"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := v.Discard(t.Context(), "vm/b1"); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestVolume_nothingLeadsOutOfIt(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "vm")); err != nil {
		t.Fatal(err)
	}
	v := open(t, dir)
	for _, directory := range []string{"vm/b1", "../x", "/x", ".", ""} {
		if err := v.Begin(directory, "u1"); err == nil {
			t.Errorf("%q was made", directory)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside: %v, %v", left, err)
	}
}

func FuzzMountInfo(f *testing.F) {
	f.Add("1 2 3:4 / /a rw - ext4 x rw\n", "/a")
	f.Fuzz(func(t *testing.T, info, path string) {
		if _, ok, err := findMount(strings.NewReader(info), path); err != nil && ok {
			t.Error("found with an error")
		}
	})
}
