//go:build root

package moverpod

import (
	"crypto/sha512"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/datamove"
)

// An image of any number of bytes is stored without what its device has behind it, and comes back with its size.
func TestImage_isStoredToItsLastByte(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	device, _ := newLoop(t, 2*mib, 1) // noise behind the image, too
	const size = 1_000_001
	job := newUpload(block)
	job.DiskBytes, job.DiskChecksum = size, checksumOf(t, device, size)
	report := s.newPod(t, job, device).run(t, datamove.Succeeded)
	if report.TotalBytes != size {
		t.Errorf("%+v", report)
	}
	volume := t.TempDir()
	s.newPod(t, newDownload(filesystem, report.SnapshotID), volume).run(t, datamove.Succeeded)
	wantContent(t, filepath.Join(volume, datamove.ImageFile), beginning(t, device, size))
	if info, err := os.Stat(filepath.Join(volume, datamove.ImageFile)); err != nil || info.Size() != size {
		t.Errorf("%+v, %v", info, err)
	}

	job = newUpload(block)
	job.DiskBytes, job.DiskChecksum = 3*mib, strings.Repeat("0", 128)
	s.newPod(t, job, device).fails(t, "has 2097152 bytes, and the image 3145728")
}

// A copy in which one bit has changed is not stored: the pod reports a failure, and there is no restore point.
func TestImage_thatHasChangedIsNotStored(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	device, _ := newLoop(t, 2*mib, 1)
	const size = 1_000_001
	job := newUpload(block)
	job.DiskBytes, job.DiskChecksum = size, checksumOf(t, device, size)
	f, err := os.OpenFile(device, os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	last := beginning(t, device, size)[size-1]
	if _, err := f.WriteAt([]byte{last ^ 1}, size-1); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s.newPod(t, job, device).fails(t, "is not the image", "back up another copy")
	if points := s.points(t); len(points) != 0 {
		t.Errorf("%d restore points of something else", len(points))
	}
}

func checksumOf(t *testing.T, path string, n int) string {
	t.Helper()
	sum := sha512.Sum512(beginning(t, path, n))
	return hex.EncodeToString(sum[:])
}
