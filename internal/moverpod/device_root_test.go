//go:build root

package moverpod

import (
	"bytes"
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
	report := s.upload(t, block, source)
	target, _ := newLoop(t, 192*mib, 2)
	p := s.newPod(t, newDownload(block, report.SnapshotID), target)
	p.Job.Parallel = 1
	p.limits.interrupted = 10 * time.Second
	journal := filepath.Join(p.Files.Cache, "restore.journal")
	mover := p.startChild(t)
	// An interruption notes what was written.
	waitUntil(t, func() bool { return p.api.lastBytesDone() > 70*mib })
	if err := mover.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := mover.wait(t, 20*time.Second); code == 0 {
		t.Skip("it was faster than the interruption")
	}
	if _, err := os.Stat(journal); err != nil {
		t.Fatal(err)
	}
	saved, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	p.run(t, datamove.Succeeded)
	if !strings.Contains(p.output.String(), `"from an earlier attempt"=67108864`) {
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

func waitUntil(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}
