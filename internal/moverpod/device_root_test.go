//go:build root

package moverpod

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/loop"
)

// newLoop returns a block device that is full of noise, and the file behind it.
func newLoop(t *testing.T, size int, seed uint64) (device, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, noise(size, seed), 0o600); err != nil {
		t.Fatal(err)
	}
	return loop.Device(t, file), file
}

// write writes at an offset of a device, past the page cache of other descriptors.
func write(t *testing.T, device string, at int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(data, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// A device goes to a larger device and to a file, and what a larger one had behind the disk is gone.
func TestDevice_isMovedWhole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	device, _ := newLoop(t, 24*mib, 1)
	write(t, device, 4*mib, make([]byte, 12*mib)) // zeroes that a device does not tell of
	content, err := os.ReadFile(device)
	if err != nil {
		t.Fatal(err)
	}
	report := s.upload(t, block, device)
	if report.TotalBytes != 24*mib || report.IncrementalBytes != 12*mib || report.StoredBytes > 13*mib {
		t.Errorf("%+v", report)
	}
	write(t, device, 20*mib, noise(4096, 2))
	if again := s.upload(t, block, device); again.IncrementalBytes != 256<<10 || again.StoredBytes > mib || again.FullReason != "" {
		t.Errorf("%+v", again)
	}

	larger, file := newLoop(t, 40*mib, 3)
	got := s.newPod(t, newDownload(block, report.SnapshotID), larger).run(t, datamove.Succeeded)
	if got.TotalBytes != 24*mib {
		t.Errorf("%+v", got)
	}
	wantContent(t, larger, append(bytes.Clone(content), make([]byte, 16*mib)...))
	// The file behind the device has it, too: it was synced, and zeroes take no space.
	wantContent(t, file, append(bytes.Clone(content), make([]byte, 16*mib)...))
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil || st.Blocks*512 > 16*mib {
		t.Errorf("it takes %d MiB, %v", st.Blocks*512/mib, err)
	}
	volume := t.TempDir()
	s.newPod(t, newDownload(filesystem, report.SnapshotID), volume).run(t, datamove.Succeeded)
	wantContent(t, filepath.Join(volume, datamove.ImageFile), content)

	smaller, _ := newLoop(t, 16*mib, 4)
	s.newPod(t, newDownload(block, report.SnapshotID), smaller).fails(t, "has 16777216 bytes, too few for a disk of 25165824 bytes")
}

// A restore to a device goes on in the same pod, and begins anew in another one, whose device may be another.
func TestDevice_restoreGoesOnInTheSamePod(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	source, _ := newLoop(t, 192*mib, 1)
	content, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	up := s.newPod(t, newUpload(block), source)
	up.Job.Parallel = 1 // one place after the other, so that the pack that is written last has what is restored last
	report := up.run(t, datamove.Succeeded)
	target, _ := newLoop(t, 192*mib, 2)
	p := s.newPod(t, newDownload(block, report.SnapshotID), target)
	p.Job.Parallel = 1
	journal := filepath.Join(p.Files.Cache, "restore.journal")
	release := holdLastPack(t, s.at.Directory)
	mover := p.startChild(t)
	// An interruption notes what was written. The restore cannot end before it: the last of the data is not to be had.
	waitUntil(t, func() bool { return p.api.lastBytesDone() >= 128*mib })
	if err := mover.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, func() bool { return strings.Contains(p.output.String(), "stopping") })
	release()
	if code := mover.wait(t, 20*time.Second); code == 0 {
		t.Fatal("an interrupted mover ended as if it had restored the disk")
	}
	if _, err := os.Stat(journal); err != nil {
		t.Fatal(err)
	}
	saved, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	p.run(t, datamove.Succeeded)
	if !strings.Contains(p.output.String(), `"from an earlier attempt"=134217728`) {
		t.Error("it began anew")
	}
	wantContent(t, target, content)
	if _, err := os.Stat(journal); err == nil {
		t.Error("the journal is left")
	}

	// The same journal means nothing for another pod.
	other := s.newPod(t, newDownload(block, report.SnapshotID), target)
	other.PodUID = "pod-2"
	if err := os.WriteFile(filepath.Join(other.Files.Cache, "restore.journal"), saved, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, target, 0, make([]byte, mib))
	other.run(t, datamove.Succeeded)
	wantContent(t, target, content)
}

// holdLastPack keeps readers of the pack that was written last in a directory from going on, until release is called.
func holdLastPack(t *testing.T, dir string) (release func()) {
	t.Helper()
	var pack string
	var written time.Time
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		below, _ := filepath.Rel(dir, path)
		if err == nil && strings.HasPrefix(below, "p") && info.Size() > mib && info.ModTime().After(written) {
			pack, written = path, info.ModTime()
		}
		return err
	})
	if err != nil || pack == "" {
		t.Fatalf("no pack in %s: %v", dir, err)
	}
	kept, held := filepath.Join(t.TempDir(), "pack"), filepath.Join(t.TempDir(), "fifo")
	if err := os.Rename(pack, kept); err != nil {
		t.Fatal(err)
	}
	makeFIFO(t, pack)
	return func() {
		t.Helper()
		if err := errors.Join(os.Link(pack, held), os.Rename(kept, pack)); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(held, os.O_RDWR, 0) // Whoever waits for a writer has one, and goes on when it is gone.
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func waitUntil(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}
