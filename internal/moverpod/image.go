package moverpod

import (
	"context"
	"errors"
	"fmt"
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
		// Somebody may seal the image from the moment on at which the device is detached, so it is not written again.
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
		err = device.finish()
	}
	if errors.Is(err, unix.EIO) { // that is what a loop device answers when the disk below is full
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

// imageDevice is the source of an image, whose record is written.
type imageDevice struct {
	*os.File

	bytes int64
	// complete says that the whole disk is there already.
	complete bool
	percent  atomic.Int64
}

// openImageDevice opens the source of an image for a disk of so many bytes. The record says what it said before, unless
// it was that of something else.
func openImageDevice(path string, bytes int64) (*imageDevice, error) {
	if bytes > handover.MaxImageBytes {
		return nil, lasting(errclass.Errorf(errclass.Invalid, "the disk has %d bytes, and an image at most %d", bytes,
			int64(handover.MaxImageBytes)), "restore it to a claim")
	}
	has, err := deviceBytes(path)
	if err != nil {
		return nil, judgeDownload(err)
	}
	if has != handover.DeviceBytes {
		return nil, lasting(errclass.Errorf(errclass.Invalid, "%s has %d bytes, and the source of an image %d", path, has,
			int64(handover.DeviceBytes)), "create the image again")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, judgeDownload(&mover.OpenError{Err: err})
	}
	d := &imageDevice{File: f, bytes: bytes}
	record, err := handover.Read(f)
	d.complete = err == nil && record.Complete && record.Bytes == bytes
	if err != nil && !errors.Is(err, errclass.Corrupt) || d.complete { // a record that was interrupted is replaced
		return d, closeOnError(f, err)
	}
	// A record that is complete must not be on the disk below while its image is being written.
	err = handover.Write(f, handover.Record{Total: bytes})
	if err == nil && record.Complete {
		err = f.Sync()
	}
	return d, closeOnError(f, err)
}

// closeOnError closes a file if there is an error, which it returns.
func closeOnError(f *os.File, err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, f.Close())
}

// noteProgress writes how far the disk is, at each percent. What is not written is no failure: the last record counts.
func (d *imageDevice) noteProgress(done int64) {
	record := handover.Record{Done: done, Total: d.bytes}
	if percent := int64(record.Percent()); d.percent.Swap(percent) != percent {
		_ = handover.Write(d, record)
	}
}

// finish says, durably, that the whole disk is on the device, which was synced before.
func (d *imageDevice) finish() error {
	err := handover.Write(d, handover.Record{Bytes: d.bytes, Done: d.bytes, Total: d.bytes, Complete: true})
	if err == nil {
		err = d.Sync()
	}
	if err != nil {
		return fmt.Errorf("say that the image is complete: %w", err)
	}
	return nil
}
