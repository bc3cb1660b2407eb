//go:build root

package moverpod

import (
	"os"
	"path/filepath"
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
	job.DiskBytes = size
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
	job.DiskBytes = 3 * mib
	s.newPod(t, job, device).fails(t, "has 2097152 bytes, and the image 3145728")
}
