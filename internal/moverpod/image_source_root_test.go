//go:build root

package moverpod

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

// newImageSource returns a block device of the size of an image's source, on XFS as in a store, and the file below.
func newImageSource(t *testing.T) (device, file string) {
	t.Helper()
	file = filepath.Join(loop.NewFileSystem(t, "xfs").Dir, "source")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, handover.DeviceBytes); err != nil {
		t.Fatal(err)
	}
	return loop.Device(t, file), file
}

func recordOf(t *testing.T, path string) handover.Record {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	record, err := handover.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return record
}

// beginning returns the first bytes of a file.
func beginning(t *testing.T, path string, n int) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, n)
	if _, err := f.ReadAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return content
}

// A disk of any number of bytes goes to the source of an image: the file below the device has the disk and how large it
// is, and takes no more space than the data.
func TestImage_isWrittenWithItsRecord(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	volume := t.TempDir()
	content := append(noise(2*mib, 1), make([]byte, 20*mib)...)
	content = append(content, noise(1_000_001, 2)...)
	if err := os.WriteFile(filepath.Join(volume, datamove.ImageFile), content, 0o600); err != nil {
		t.Fatal(err)
	}
	report := s.upload(t, filesystem, volume)

	device, file := newImageSource(t)
	write(t, device, 3*mib, noise(16*mib, 3)) // of an earlier pod
	job := newDownload(block, report.SnapshotID)
	job.Image = true
	p := s.newPod(t, job, device)
	if got := p.run(t, datamove.Succeeded); got.TotalBytes != int64(len(content)) {
		t.Errorf("%+v", got)
	}
	size := int64(len(content))
	want := handover.Record{Bytes: size, Done: size, Total: size, Complete: true}
	if got := recordOf(t, file); got != want {
		t.Errorf("the record is %+v, want %+v", got, want)
	}
	if !bytes.Equal(beginning(t, file, len(content)), content) {
		verdict.Errorf(t, "the file below the device has something else than the disk")
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil || st.Blocks*512 > 5*mib {
		t.Errorf("it takes %d MiB, %v", st.Blocks*512/mib, err)
	}
	if p.api.lastBytesDone() != size {
		t.Errorf("%d bytes done", p.api.lastBytesDone())
	}

	// A process that starts again after the last write leaves a disk alone that may be sealed any moment.
	write(t, device, 0, []byte("sealed"))
	s.newPod(t, job, device).run(t, datamove.Succeeded)
	if !bytes.HasPrefix(beginning(t, device, 6), []byte("sealed")) {
		t.Error("a disk that is complete was written again")
	}
}

// A restore that fails leaves no record that says that the image is complete.
func TestImage_thatFailsIsNotComplete(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	source, _ := newLoop(t, 4*mib, 1)
	report := s.upload(t, block, source)
	device, file := newImageSource(t)
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := handover.Write(f, handover.Record{Bytes: 7, Complete: true}); err != nil { // of another image
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	job := newDownload(block, report.SnapshotID)
	job.Image = true
	damagePacks(t, s.at.Directory)
	s.newPod(t, job, device).fails(t, "varve repo check")
	if got := recordOf(t, file); got.Complete {
		t.Errorf("the record is %+v", got)
	}
}

// A device of another size is no source of an image. One that is missing is explained once.
func TestImage_isWrittenToNothingElse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	source, _ := newLoop(t, 4*mib, 1)
	report := s.upload(t, block, source)
	other, _ := newLoop(t, 8*mib, 2)
	before := beginning(t, other, 8*mib)
	job := newDownload(block, report.SnapshotID)
	job.Image = true
	s.newPod(t, job, other).fails(t, "has 8388608 bytes, and the source of an image 8796093022208")
	wantContent(t, other, before)

	_, err := openImageDevice(filepath.Join(t.TempDir(), "none"), 4*mib)
	if text := judgeDownload(err).Error(); strings.Count(text, "without its volume") != 1 {
		t.Errorf("a missing device: %s", text)
	}
}
