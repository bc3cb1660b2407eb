package moverpod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/store/handover"
)

// downloadImage writes a disk to the source of an image, with the record that says how large it is. What the device has
// behind the disk, but for the record, does not matter: the store seals as many bytes as the record says.
func (r *run) downloadImage(
	ctx context.Context, repo *repository.Repository, d *repository.Disk, to mover.Destination,
) (_ datamove.Report, err error) {
	device, err := openImageDevice(to.Location, d.Bytes)
	if err != nil {
		return datamove.Report{}, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	if device.complete {
		// From the moment at which the device is detached, somebody may seal the image: it is not written again.
		r.Log.Info("an earlier process of this pod has restored the disk", "bytes", d.Bytes)
		r.progress.set(d.Bytes, d.Bytes)
		return datamove.Report{TotalBytes: d.Bytes}, nil
	}
	result, err := mover.Restore(ctx, repo, mover.RestoreRequest{
		Disk: *d, Destination: to, Workers: r.Job.Parallel, CancelGrace: r.workGrace(),
		Progress: func(p mover.Progress) {
			done := d.Bytes - p.TotalBytes + p.ProcessedBytes
			r.progress.set(d.Bytes, done)
			device.noteProgress(done)
		},
	})
	if err == nil {
		err = device.markComplete()
	}
	if errors.Is(err, unix.EIO) { // A loop device answers this when the disk below is full.
		err = fmt.Errorf("%w: the disk of the image is probably full: free space on it, or choose another disk", err)
	}
	if err != nil {
		return datamove.Report{}, err
	}
	r.progress.set(d.Bytes, d.Bytes)
	r.Log.Info("restored to the source of an image: every block was verified, and the device is synced", "bytes",
		d.Bytes, "from an earlier attempt", result.ResumedBytes)
	return datamove.Report{TotalBytes: d.Bytes}, nil
}

// imageDevice is the source of an image. It has a record of how far the image is.
type imageDevice struct {
	*os.File

	bytes int64
	// complete says that the whole disk is there already.
	complete bool
	percent  atomic.Int64
}

// openImageDevice opens the source of an image for a disk of so many bytes. It keeps a record that says that this disk is
// complete, and replaces every other.
func openImageDevice(path string, bytes int64) (*imageDevice, error) {
	if bytes > handover.MaxImageBytes {
		return nil, lasting(errclass.Errorf(errclass.Invalid, "the disk has %d bytes, and an image at most %d", bytes,
			int64(handover.MaxImageBytes)), "restore it to a claim")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, &mover.OpenError{Err: err}
	}
	d := &imageDevice{File: f, bytes: bytes}
	if err := d.prepareRecord(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

// prepareRecord checks the size of the device, and replaces its record unless the whole disk is there.
func (d *imageDevice) prepareRecord() error {
	has, err := d.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if has != handover.DeviceBytes {
		return lasting(errclass.Errorf(errclass.Invalid, "%s has %d bytes, and the source of an image %d", d.Name(), has,
			int64(handover.DeviceBytes)), "create the image again")
	}
	record, err := handover.Read(d)
	if err != nil && !errors.Is(err, errclass.Corrupt) { // a record that was interrupted is replaced
		return err
	}
	if d.complete = err == nil && record.Complete && record.Bytes == d.bytes; d.complete {
		return nil
	}
	if err := handover.Write(d, handover.Record{Total: d.bytes}); err != nil || !record.Complete {
		return err
	}
	// A record that is complete must not be on the disk below while its image is being written.
	return d.Sync()
}

// noteProgress records how far the disk is, at each percent. A record that cannot be written fails nothing: the last one
// counts.
func (d *imageDevice) noteProgress(done int64) {
	record := handover.Record{Done: done, Total: d.bytes}
	if percent := int64(record.Percent()); d.percent.Swap(percent) != percent {
		_ = handover.Write(d, record)
	}
}

// markComplete records durably that the whole disk is on the device, which was synced before.
func (d *imageDevice) markComplete() error {
	err := handover.Write(d, handover.Record{Bytes: d.bytes, Done: d.bytes, Total: d.bytes, Complete: true})
	if err == nil {
		err = d.Sync()
	}
	if err != nil {
		return fmt.Errorf("record that the image is complete: %w", err)
	}
	return nil
}
