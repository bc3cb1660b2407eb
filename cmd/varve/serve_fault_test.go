//go:build nbd_interop

package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/verdict"
)

// TestServe_damagedDisk: a damaged block cannot be read, and the log says why. All others can be read.
func TestServe_damagedDisk(t *testing.T) {
	t.Parallel()
	const block, blocks = 256 << 10, 20
	disk := memory(random(blocks*block, "disk to damage"))
	k := keep(t, repository.DiskSource{Bytes: int64(len(disk)), Reader: disk})
	flip(t, filepath.Join(k.dir, "blobs"))
	for _, args := range [][]string{nil, {"--overlay", "o"}} {
		s := k.serve(t, args...)
		c := s.dial(t, 2)
		var damaged []int64
		for n := range int64(blocks) {
			p := make([]byte, block)
			switch err := c.ReadAt(t.Context(), p, n*block); {
			case errors.Is(err, unix.EIO):
				damaged = append(damaged, n)
			case err != nil:
				t.Fatal(err)
			case !bytes.Equal(p, disk[n*block:(n+1)*block]):
				verdict.Errorf(t, "block %d differs", n)
			}
		}
		if len(damaged) != 1 {
			t.Fatalf("blocks %v cannot be read", damaged)
		}
		// Not even a part of it can be read.
		at := damaged[0] * block
		if err := c.ReadAt(t.Context(), make([]byte, 1024), at+block-512); !errors.Is(err, unix.EIO) {
			t.Errorf("a part: %v", err)
		}
		if args != nil { // once it is written as a whole it is good again; a part of it cannot be written
			if err := c.WriteAt(t.Context(), disk[at:at+100], at, 0); !errors.Is(err, unix.EIO) {
				t.Errorf("a part was written: %v", err)
			}
			if err := c.WriteAt(t.Context(), disk[at:at+block], at, nbd.CmdFlagFUA); err != nil {
				t.Error(err)
			}
			if !bytes.Equal(wholeDisk(t, s, len(disk)), disk) {
				verdict.Errorf(t, "what was written is not there")
			}
		}
		if err := s.end(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		for _, word := range []string{"level=WARN", "disk root at ", "corrupt: blob p", "command=read"} {
			if !strings.Contains(s.text(), word) {
				t.Errorf("it does not say %q:\n%s", word, s.text())
			}
		}
	}
}

// flip changes a byte in the middle of the largest pack.
func flip(t *testing.T, dir string) {
	t.Helper()
	var largest string
	var size int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		within, err := filepath.Rel(dir, path)
		if err != nil || !strings.HasPrefix(within, "p") {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > size {
			largest, size = path, info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(largest)
	if err != nil {
		t.Fatal(err)
	}
	data[size/2] ^= 1
	if err := os.WriteFile(largest, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestServe_onAFullDisk: if the overlay's file system is full, writes fail as on a full disk, but reads do not. What is
// trimmed can be written again.
func TestServe_onAFullDisk(t *testing.T) {
	t.Parallel()
	const step = 64 << 10
	disk := memory(random(8<<20, "disk that fills another"))
	k := keep(t, repository.DiskSource{Bytes: int64(len(disk)), Reader: disk})
	small := filepath.Join(k.dir, "small")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatalf("mount, which takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := k.serve(t, "--overlay", filepath.Join(small, "o"))
	c := s.dial(t, 1)
	full := int64(0)
	fill := func(from int64) {
		t.Helper()
		for full = from; ; full += step {
			p := bytes.Repeat([]byte{7}, step)
			err := c.WriteAt(t.Context(), p, full, 0)
			if errors.Is(err, unix.ENOSPC) {
				return
			}
			if err != nil || full >= 4<<20 {
				t.Fatalf("write at %d: %v", full, err)
			}
			copy(disk[full:], p)
		}
	}
	fill(0)
	if !bytes.Equal(wholeDisk(t, s, len(disk)), disk) {
		verdict.Errorf(t, "something else is read")
	}
	if err := c.Trim(t.Context(), extent.Extent{Length: 8 * step}, 0); err != nil {
		t.Fatal(err)
	}
	clear(disk[:8*step])
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	fill(full)
	if err := c.Trim(t.Context(), extent.Extent{Offset: full - step, Length: step}, 0); err != nil { // for the map
		t.Fatal(err)
	}
	clear(disk[full-step : full])
	if err := s.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if !strings.Contains(s.text(), "no space left on device") {
		t.Errorf("it does not say why:\n%s", s.text())
	}
	again := k.serve(t, "--overlay", filepath.Join(small, "o"))
	if !bytes.Equal(wholeDisk(t, again, len(disk)), disk) {
		verdict.Errorf(t, "something else is read later")
	}
	if err := again.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
