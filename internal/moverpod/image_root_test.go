//go:build root

package moverpod

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/reflink"
	"github.com/varvebackup/varve/test/loop"
)

const (
	imageBytes = 48 * mib
	// zeroesOfImage is how many zeroes the image has as data. In what a device restores, they are a hole.
	zeroesOfImage = 7 * mib
)

// imageDisk is a disk of the store with an image.
type imageDisk struct {
	*reflink.Disk

	content []byte // of the image
}

func newImageDisk(t *testing.T) *imageDisk {
	t.Helper()
	fs := loop.NewFileSystem(t, "xfs")
	if err := reflink.Format(fs.Dir, "disk-1"); err != nil {
		t.Fatal(err)
	}
	d, err := reflink.Open(t.Context(), fs.Dir, reflink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &imageDisk{Disk: d, content: append(noise(imageBytes/2, 1), make([]byte, imageBytes/2)...)}
	copy(s.content[40*mib:], noise(mib, 2))
	head := s.clone(t, "source", disk.Source{UID: "s", Volume: "s", Bytes: imageBytes})
	f, err := os.OpenFile(head.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 8 * mib, 16 * mib, 40 * mib} { // holes elsewhere, but for some zeroes that are allocated
		if _, err := f.WriteAt(s.content[at:min(at+8*mib, imageBytes)], at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Snapshot(t.Context(), "source", "image", disk.Seal{UID: "i", Kind: disk.KindImage}); err != nil {
		t.Fatal(err)
	}
	return s
}

// clone makes a head and opens it.
func (s *imageDisk) clone(t *testing.T, name disk.Name, source disk.Source) disk.Lease {
	t.Helper()
	if err := s.Create(t.Context(), name, source); err != nil {
		t.Fatal(err)
	}
	lease, err := s.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Close() }) // always nil
	return lease
}

// changed returns how much of a clone is not shared with the image.
func (s *imageDisk) changed(t *testing.T, name disk.Name) int64 {
	t.Helper()
	var sum int64
	for e, err := range s.Changed(t.Context(), name, "image") {
		if err != nil {
			t.Fatal(err)
		}
		sum += e.Length
	}
	return sum
}

// A machine's disk, restored to a clone of the image that it was one of, shares all blocks with the image that the
// machine has not written. Without a comparison, none.
func TestDevice_restoredToACloneSharesItsBlocks(t *testing.T) {
	t.Parallel()
	s, images := newSite(t), newImageDisk(t)
	const blocks = 300
	written := bytes.Clone(images.content)
	for i := range blocks { // in data, in a hole, and one block of zeroes in data
		copy(written[i*64<<10+8192:], noise(4096, uint64(100+i)))
	}
	clear(written[mib : mib+4096])
	machine := images.clone(t, "machine", disk.Source{UID: "m", Volume: "m", From: "image", Bytes: imageBytes})
	device := loop.Device(t, machine.Path())
	write(t, device, 0, written[:imageBytes/2])
	report := s.upload(t, block, device)

	for name, skip := range map[disk.Name]bool{"whole": false, "compared": true} {
		lease := images.clone(t, name, disk.Source{
			UID: disk.UID(name), Volume: disk.UID(name), From: "image", Bytes: imageBytes + 4*mib,
		})
		target := loop.Device(t, lease.Path())
		job := newDownload(block, report.SnapshotID)
		job.SkipEqual = skip
		p := s.newPod(t, job, target)
		if got := p.run(t, datamove.Succeeded).WrittenBytes; (got == (blocks+1)*4096) != skip {
			t.Errorf("%s: the report says that %d bytes were written", name, got)
		}
		wantContent(t, target, append(bytes.Clone(written), make([]byte, 4*mib)...))
		switch got := images.changed(t, name); {
		case skip && got != (blocks+1)*4096+zeroesOfImage:
			t.Errorf("%d bytes differ from the image's, %d were written to the machine", got, (blocks+1)*4096)
		case !skip && got < imageBytes/4:
			t.Errorf("a whole restore changed %d bytes: this test shows nothing", got)
		}
		if said := strings.Contains(p.output.String(), "compared: only what differed was written"); said != skip {
			t.Errorf("the log: %s", p.output)
		}
	}
}
