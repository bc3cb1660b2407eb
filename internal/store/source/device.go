package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/sparse"
	"github.com/varvebackup/varve/internal/store/handover"
)

const (
	// blockBytes is the size of the blocks that are not written if they are zero.
	blockBytes = 64 << 10
	// bufferBytes is how much of a stream is read at once, a multiple of blockBytes.
	bufferBytes = 1 << 20
	// syncBytes is how much is written between syncs. A full disk under a loop device shows only there.
	syncBytes = 1 << 30
	// wipeBytes is how much one system call wipes, which nothing can interrupt.
	wipeBytes = 256 << 30
)

// device is the block device that gets the image.
type device struct {
	*os.File

	// maxBytes is the size of the largest image.
	maxBytes int64
}

func openDevice(path string) (*device, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the image's device: %w", err)
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil && size != handover.DeviceBytes {
		err = errclass.Errorf(errclass.Invalid, "the image's device %s has %d bytes, not %d", path, size,
			int64(handover.DeviceBytes))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &device{f, handover.MaxImageBytes}, nil
}

// wipe makes the whole device read as zeroes, and frees what it holds. An attempt that was interrupted has left data in
// blocks that the next attempt skips because they are zero.
func (d *device) wipe(ctx context.Context) error {
	return d.wipeRange(ctx, 0, handover.DeviceBytes)
}

// wipeRange does that with a part of the device, in whole blocks.
func (d *device) wipeRange(ctx context.Context, offset, end int64) error {
	for ; offset < end; offset += wipeBytes {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		length := min(wipeBytes, (end-offset+blockBytes-1)/blockBytes*blockBytes)
		// A block device fails if it can do this only by writing.
		err := unix.Fallocate(int(d.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
		if err != nil {
			return fmt.Errorf("empty the image's device from byte %d on: %w", offset, err)
		}
	}
	return nil
}

// writeStream writes a raw image from the first byte on, except its zero blocks, and returns its size in bytes.
func (d *device) writeStream(ctx context.Context, raw io.Reader) (int64, error) {
	return d.writeStreamAt(ctx, raw, 0, d.maxBytes)
}

// writeStreamAt does that from another byte on, and writes no more bytes than most.
func (d *device) writeStreamAt(ctx context.Context, raw io.Reader, offset, most int64) (int64, error) {
	buffer := make([]byte, bufferBytes)
	size, synced := int64(0), int64(0)
	for {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		n, err := fill(raw, buffer)
		if n > 0 && size+int64(n) > most {
			return 0, errTooLarge
		}
		if werr := d.writeBlocks(buffer[:n], offset+size); werr != nil {
			return 0, werr
		}
		size += int64(n)
		if err == io.EOF { //nolint:errorlint // A wrapped io.EOF is an error of what is below.
			return size, nil
		}
		if err != nil {
			return 0, err
		}
		if size-synced >= syncBytes {
			if err := d.sync(); err != nil {
				return 0, err
			}
			synced = size
		}
	}
}

// fill reads until the buffer is full or the reader returns an error, which it returns as it is: io.ReadFull would make
// no difference between the end of the image and compressed data that ends too early.
func fill(r io.Reader, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil {
		var more int
		more, err = r.Read(buffer[n:])
		n += more
	}
	return n, err
}

// errTooLarge refuses an image. Its size is not known: nothing after the limit is read.
var errTooLarge = errclass.Errorf(errclass.Invalid, "the image has more than %d bytes, which is the most",
	int64(handover.MaxImageBytes))

// writeBlocks writes the blocks of data that are not zero.
func (d *device) writeBlocks(data []byte, offset int64) error {
	for len(data) > 0 {
		n := min(blockBytes, len(data))
		if !sparse.IsZero(data[:n]) {
			if _, err := d.WriteAt(data[:n], offset); err != nil {
				return describeFull(fmt.Errorf("write to the image's device: %w", err))
			}
		}
		data, offset = data[n:], offset+int64(n)
	}
	return nil
}

func (d *device) sync() error {
	if err := d.Sync(); err != nil {
		return describeFull(fmt.Errorf("sync the image's device: %w", err))
	}
	return nil
}

// describeFull says what an error of writing probably means. A loop device answers EIO when the disk below is full.
func describeFull(err error) error {
	if errclass.IsFull(err) || errors.Is(err, unix.EIO) {
		return errclass.Errorf(errclass.Exhausted, "%w: the disk of the image is probably full: free space on it, or "+
			"choose another disk", err)
	}
	return err
}
