//go:build root

package repository

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// newSmallExt4 is newSmall with a file system that has blocks, inodes and a journal.
func newSmallExt4(tb testing.TB, dir string, bytes int64) *small {
	tb.Helper()
	image := filepath.Join(tb.TempDir(), "ext4")
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(image, nil, 0o600)
	}
	if err == nil {
		err = os.Truncate(image, bytes)
	}
	if err != nil {
		tb.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			tb.Fatalf("%s: %s, %v", args, out, err)
		}
	}
	tb.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			tb.Error(err)
		}
	})
	return &small{dir: dir}
}

// fill fills the file system until this many bytes are free, or as far as it goes: a file system may need some of them
// for the file.
func (s *small) fill(tb testing.TB, left int64) {
	tb.Helper()
	f, err := os.Create(filepath.Join(s.dir, "filler"))
	if err != nil {
		tb.Fatal(err)
	}
	for err == nil && s.available(tb) >= left+4*kib {
		_, err = f.Write(make([]byte, max(4*kib, min(mib, (s.available(tb)-left)/2)&^(4*kib-1))))
		if err == nil {
			err = f.Sync()
		}
	}
	if err != nil && !errclass.IsFull(err) {
		tb.Fatal(err)
	}
	if err := f.Close(); err != nil {
		tb.Fatal(err)
	}
}

// available returns how many bytes are free.
func (s *small) available(tb testing.TB) int64 {
	tb.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		tb.Fatal(err)
	}
	return int64(fs.Bavail) * fs.Bsize
}

// randomDisk returns a disk whose bytes nothing else has.
func randomDisk(name string, bytes int) (DiskSource, []byte) {
	data := make([]byte, bytes)
	_, _ = rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", name)))).Read(data)
	return DiskSource{Name: "root", Bytes: int64(bytes), Reader: &memory{data: data}}, data
}

// Room can be made on a full file system: a restore point is deleted, and what it had is freed, also what a backup has
// left that found no space.
func TestFull_roomCanBeMade(t *testing.T) {
	t.Parallel()
	for system, c := range map[string]struct {
		make func(testing.TB, string, int64) *small
		left []int64
	}{
		"tmpfs": {newSmall, []int64{0, 41 * kib}},
		"ext4":  {newSmallExt4, []int64{0, 16 * mib}},
	} {
		for _, left := range c.left {
			t.Run(fmt.Sprintf("%s/%d", system, left), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				disk := c.make(t, filepath.Join(dir, "disk"), 120*mib)
				at, config := Location{Directory: filepath.Join(disk.dir, "blobs")}, filepath.Join(dir, "repository.config")
				if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				if err := Connect(t.Context(), config, at, testPassword, ConnectOptions{Host: "host", User: "varve"}); err != nil {
					t.Fatal(err)
				}
				backUp := func(name string, bytes int) (*RestorePoint, []byte, error) {
					source, data := randomDisk(name, bytes)
					r, err := Open(t.Context(), config, testPassword)
					if err != nil {
						t.Fatal(err)
					}
					p, err := r.Backup(t.Context(), Request{Source: Source{Host: "host", User: "varve", Path: "/" + name}, Time: time.Unix(1, 0), Disks: []DiskSource{source}})
					if err := r.Close(t.Context()); err != nil {
						t.Error(err)
					}
					return p, data, err
				}
				kept, content, err := backUp("kept", 20*mib)
				if err != nil {
					t.Fatal(err)
				}
				gone, _, err := backUp("gone", 40*mib)
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := backUp("large", 120*mib); !errclass.IsFull(err) {
					t.Fatalf("this test does not test anything: %v", err)
				}
				disk.fill(t, left)
				before := disk.available(t)
				r := open(t, config)
				if err := r.Delete(t.Context(), gone.ID); err != nil {
					t.Fatal(err)
				}
				if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
					t.Fatal(err)
				}
				if freed := disk.available(t) - before; freed < 40*mib {
					t.Errorf("%d MiB were freed", freed>>20)
				}
				same(t, open(t, config), kept, content)
				disk.free(t)
				if _, _, err := backUp("next", 30*mib); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(filepath.Join(at.Directory, "varve.reserve")); err != nil {
					t.Errorf("there is room, and no reserve: %v", err)
				}
			})
		}
	}
}
