package reflink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// tailBytes is the size of a file system's largest block, of which a file may have a part.
const tailBytes = 64 << 10

// Grow implements [disk.Disk]. The file grows first. If a crash comes before the metadata has the new size, Open cuts
// the file back: nobody could write to the new part.
func (d *Disk) Grow(ctx context.Context, head disk.Name, bytes int64) error {
	if err := d.growHead(ctx, head, bytes); err != nil {
		return fmt.Errorf("grow head %q to %d bytes: %w", head, bytes, describeFull(err))
	}
	return nil
}

func (d *Disk) growHead(ctx context.Context, name disk.Name, bytes int64) error {
	head, done, err := d.beginGrowth(ctx, name, bytes)
	if err != nil || done {
		return err
	}
	defer d.endSnapshot(head)
	err = os.Truncate(head.Path(), bytes)
	if err == nil {
		err = d.reach("truncate")
	}
	if err == nil {
		err = durable.Sync(head.Path())
	}
	if err == nil {
		err = d.reach("data")
	}
	return d.finishGrowth(head, bytes, err)
}

// beginGrowth leases a head that is to grow, and keeps it from being sealed meanwhile. Done means that it has the size.
func (d *Disk) beginGrowth(ctx context.Context, name disk.Name, bytes int64) (l *lease, done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen(ctx); err != nil {
		return nil, false, err
	}
	head, err := d.findIntact(name)
	switch {
	case err != nil:
		return nil, false, err
	case head.Kind != disk.KindHead:
		return nil, false, errclass.Errorf(errclass.Invalid, "it is no head, but a %s, which keeps its size", head.Kind)
	case head.Bytes == bytes:
		return nil, true, nil
	case head.Bytes > bytes:
		return nil, false, errclass.Errorf(errclass.Invalid, "it has %d bytes: a head cannot shrink", head.Bytes)
	case d.sealing[head.UID]:
		return nil, false, errclass.Errorf(errclass.Transient, "a snapshot or an image of it is being made: try again")
	}
	d.sealing[head.UID] = true
	return d.leaseObject(head), false, nil
}

// finishGrowth puts the size of a head into the metadata of its replica, or cuts its file back if it failed to grow.
func (d *Disk) finishGrowth(l *lease, bytes int64, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	head := l.object
	dir := filepath.Join(d.dir, head.group)
	next := metadata{Format: formatVersion, Objects: slices.Clone(d.groups[head.group].Objects)}
	next.Objects[len(next.Objects)-1].Bytes = bytes
	if err == nil {
		err = d.writeMetadata(dir, next)
	}
	if err == nil {
		d.groups[head.group] = next
		return d.reach("done")
	}
	written, readErr := readMetadata(filepath.Join(dir, metadataFile))
	switch {
	case readErr != nil:
		return fmt.Errorf("%w: %w", errclass.Unknown, errors.Join(err, readErr))
	case written.Objects[len(written.Objects)-1].Bytes == bytes: // it has grown, which may not be durable
		d.groups[head.group] = written
		return fmt.Errorf("%w: %w", errclass.Unknown, err)
	}
	return errors.Join(err, os.Truncate(l.Path(), head.Bytes))
}

// undoGrowth cuts off what a head has beyond its size, if nothing was ever written there: a crash came while it grew.
func (d *Disk) undoGrowth(path string, o entry) (err error) {
	if o.Kind != disk.KindHead {
		return nil
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() <= o.Bytes {
		return nil // checkIntact says what is wrong with it
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	blank, err := isBlankFrom(f, o.Bytes)
	if err != nil || !blank { // checkIntact reports the head as damaged
		return err
	}
	if err := errors.Join(f.Truncate(o.Bytes), f.Sync()); err != nil {
		return err
	}
	d.recovered = append(d.recovered, fmt.Sprintf("cut %q back to %d bytes: a crash had come while it grew", o.Name,
		o.Bytes))
	return nil
}

// isBlankFrom reports whether a file has only zeroes in the block that it has at an offset, and holes after that.
func isBlankFrom(f *os.File, offset int64) (bool, error) {
	block := make([]byte, tailBytes-offset%tailBytes)
	n, err := f.ReadAt(block, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	if slices.ContainsFunc(block[:n], func(b byte) bool { return b != 0 }) {
		return false, nil
	}
	_, err = unix.Seek(int(f.Fd()), offset+int64(len(block)), unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return true, nil
	}
	return false, err
}
