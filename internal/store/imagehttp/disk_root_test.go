//go:build root

package imagehttp

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/download"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/reflink"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
)

// An image on a real disk comes to a file. It cannot be deleted while it is read.
func TestServer_ofARealDisk(t *testing.T) {
	t.Parallel()
	fs := loop.NewFileSystem(t, "xfs")
	if err := reflink.Format(fs.Dir, "d-1"); err != nil {
		t.Fatal(err)
	}
	files, err := reflink.Open(t.Context(), fs.Dir, reflink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	data := make([]byte, 64*mib+1001)
	copy(data[5*mib+7:], disktest.Noise(4, 3*mib))
	copy(data[len(data)-9:], "the end")
	on := disktest.Disk{Disk: files, TB: t}
	on.NewImage(names.Image(golden.Image, golden.UUID), disk.UID(golden.UUID), data)
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: files, Name: "d", UUID: "d-1", Path: fs.Dir})
	w := newWorld(t, func(o *Options) { o.Disks = disks })

	hashes, err := w.newClient(goodToken).ReadHashes(t.Context(), golden, 65)
	if err != nil {
		t.Fatal(err)
	}
	image := download.Image{
		Bytes: int64(len(data)), Checksum: disktest.Checksum(data), PiecesChecksum: disk.SumPieces(hashes),
	}
	path := filepath.Join(t.TempDir(), "golden.raw")
	to, err := download.OpenFile(path, image.Checksum, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = to.Close() })
	transfer, err := download.NewTransfer(image, to)
	if err != nil {
		t.Fatal(err)
	}
	if err := transfer.Begin(t.Context(), hashes); err != nil {
		t.Fatal(err)
	}
	from, _, err := transfer.Next(t.Context())
	if err != nil || from != 5 {
		t.Fatalf("the first piece is %d: %v", from, err)
	}
	body, err := w.newClient(goodToken).OpenData(t.Context(), golden, from)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(transfer.Receive(t.Context(), body), body.Close(), transfer.Finish()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		verdict.Errorf(t, "%d bytes that may differ: %v", len(got), err)
	}

	s := &server{o: w.options, pieces: semaphore.NewWeighted(maxPieces)}
	read, err := s.leaseCopy(newRequest(golden))
	if err != nil {
		t.Fatal(err)
	}
	name := names.Image(golden.Image, golden.UUID)
	if err := files.Delete(t.Context(), name); !errors.Is(err, errclass.Conflict) {
		t.Errorf("an image that is read was deleted: %v", err)
	}
	if err := errors.Join(read.endLease(), files.Delete(t.Context(), name)); err != nil {
		t.Errorf("an image that was read stays: %v", err)
	}
}
