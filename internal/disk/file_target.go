package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/disk/hole"
	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// fileTarget is a raw disk in a regular file or on a block device.
type fileTarget struct {
	f       *os.File
	bytes   int64
	regular bool
	// plain is set when the file system or device cannot free space; zeroes are written then.
	plain atomic.Bool
	// unwritten counts the bytes given to the kernel since it was last told to start writing.
	unwritten atomic.Int64
}

func openFileTarget(path string, bytes int64, o TargetOptions) (*fileTarget, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	created := err == nil
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, explainFull(path, err)
	}
	if err := prepareFile(f, bytes, o); err != nil {
		unlockFile(f)
		if created {
			err = errors.Join(err, os.Remove(path))
		}
		return nil, errors.Join(err, f.Close())
	}
	return &fileTarget{f: f, bytes: bytes, regular: true}, nil
}

// prepareFile gives the file its size and its journal, unless an earlier restore has done so.
func prepareFile(f *os.File, bytes int64, o TargetOptions) error {
	if err := lockForWriting(f); err != nil {
		return err
	}
	id, err := identityOf(f)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	resumed, why, err := o.Journal.resumeTarget(f.Name(), Raw, id, bytes)
	if err != nil {
		return err
	}
	if resumed {
		if size < bytes {
			return errclass.Errorf(errclass.Conflict, "target %s has %d bytes, and had %d when its restore was interrupted: somebody changed it; remove %s to start anew", f.Name(), size, bytes, o.Journal.path)
		}
		return nil
	}
	data, err := hole.NextData(f, extent.Extent{Length: size})
	if err != nil {
		return fmt.Errorf("find data of %s: %w", f.Name(), err)
	}
	if !data.Empty() && !o.Overwrite {
		return errOccupied(f.Name(), fmt.Sprintf("has content (%d bytes)", size), why)
	}
	if err := o.Journal.removeFile(); err != nil {
		return err
	}
	if size < bytes || !o.Larger {
		if !data.Empty() && o.Compare == nil {
			err = f.Truncate(0) // frees it all at once
		}
		err = errors.Join(err, f.Truncate(bytes))
	}
	if err := errors.Join(err, f.Sync(), durable.Sync(filepath.Dir(f.Name()))); err != nil {
		return err
	}
	return o.Journal.beginTarget(id)
}

func openDeviceTarget(path string, bytes int64, o TargetOptions) (*fileTarget, error) {
	// O_EXCL refuses a device that is mounted, swapped to, or part of a volume group, and prevents that while it is
	// open. Children that are being started still hold what this process has just closed; ForkLock waits for them.
	syscall.ForkLock.RLock()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	syscall.ForkLock.RUnlock()
	if errors.Is(err, unix.EBUSY) {
		return nil, errclass.Errorf(errclass.Conflict, "target %s is in use (mounted, swapped to, or part of another device): unmount it first (lsblk %s shows by what)", path, path)
	}
	if err != nil {
		return nil, err
	}
	if err := prepareDevice(f, bytes, o); err != nil {
		unlockFile(f)
		return nil, errors.Join(err, f.Close())
	}
	return &fileTarget{f: f, bytes: bytes}, nil
}

func prepareDevice(f *os.File, bytes int64, o TargetOptions) error {
	if err := lockForWriting(f); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if err := checkFits(f.Name(), size, bytes, o.Larger); err != nil {
		return err
	}
	id, err := identityOf(f)
	if err != nil {
		return err
	}
	resumed, why, err := o.Journal.resumeTarget("", Raw, id, bytes)
	if err != nil || resumed {
		return err
	}
	if !o.Overwrite {
		return errOccupied(f.Name(), "is a device, which may have content", why)
	}
	return o.Journal.beginTarget(id)
}

// Bytes implements Target.
func (t *fileTarget) Bytes() int64 { return t.bytes }

// WriteAt implements Target.
func (t *fileTarget) WriteAt(ctx context.Context, p []byte, offset int64) error {
	if err := checkWithin(t.f.Name(), t.bytes, offset, len(p)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, err := t.f.WriteAt(p, offset); err != nil {
		return explainFull(t.f.Name(), err)
	}
	t.beginWriteback(int64(len(p)))
	return nil
}

// beginBytes is how much is written before the kernel is told to start writing it out.
const beginBytes = 32 << 20

// beginWriteback counts what the kernel was given, and tells it now and then to start writing. Left alone, the kernel would let
// some GiB become dirty, and the disk would idle until Sync. beginWriteback waits for nothing, and makes nothing durable.
func (t *fileTarget) beginWriteback(n int64) {
	if t.unwritten.Add(n) >= beginBytes && t.unwritten.Swap(0) >= beginBytes {
		_ = unix.SyncFileRange(int(t.f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE) // only advice: errors come back from Sync
	}
}

// Sync implements Target.
func (t *fileTarget) Sync(context.Context) error { return explainFull(t.f.Name(), t.f.Sync()) }

// Close implements Target.
func (t *fileTarget) Close() error {
	unlockFile(t.f)
	return t.f.Close()
}

// Zero implements Target.
func (t *fileTarget) Zero(ctx context.Context, e extent.Extent) error {
	if err := checkWithin(t.f.Name(), t.bytes, e.Offset, int(e.Length)); err != nil {
		return err
	}
	data, known, err := t.nonzeroWithin(ctx, e)
	if err != nil {
		return err
	}
	if !known {
		data = extent.NewSet(e)
	}
	for part := range data.All() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := t.zeroData(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// sectorBytes is a multiple of the logical block sizes of devices. Only whole sectors are freed.
const sectorBytes = 4 << 10

// freeExtent makes e read as zeroes, without space if possible.
func (t *fileTarget) freeExtent(ctx context.Context, e extent.Extent) error {
	inner := e
	if !t.regular {
		start := (e.Offset + sectorBytes - 1) / sectorBytes * sectorBytes
		inner = extent.Extent{Offset: start, Length: max(0, e.End()/sectorBytes*sectorBytes-start)}
	}
	if inner.Empty() || t.plain.Load() {
		return t.blankExtent(ctx, e)
	}
	err := unix.Fallocate(int(t.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, inner.Offset, inner.Length)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		t.plain.Store(true)
		return t.blankExtent(ctx, e)
	}
	if err != nil {
		return os.NewSyscallError("fallocate", err)
	}
	if err := t.blankExtent(ctx, extent.Extent{Offset: e.Offset, Length: inner.Offset - e.Offset}); err != nil {
		return err
	}
	return t.blankExtent(ctx, extent.Extent{Offset: inner.End(), Length: e.End() - inner.End()})
}

// blankExtent writes zeroes where there are none yet. It reads first to keep a thin device thin: a write allocates space, a
// read does not.
func (t *fileTarget) blankExtent(ctx context.Context, e extent.Extent) error {
	if e.Empty() {
		return nil
	}
	buf := make([]byte, min(e.Length, 16*granuleBytes))
	for at := e.Offset; at < e.End(); at += int64(len(buf)) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		buf = buf[:min(int64(len(buf)), e.End()-at)]
		if _, err := t.f.ReadAt(buf, at); err != nil {
			return err
		}
		for i := 0; i < len(buf); i += granuleBytes {
			part := buf[i:min(i+granuleBytes, len(buf))]
			if isZero(part) {
				continue
			}
			clear(part)
			if _, err := t.f.WriteAt(part, at+int64(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// isZero reports whether p, which must not be empty, has only zeroes: the first byte is zero, and every other byte equals
// the one before it.
func isZero(p []byte) bool { return p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1]) }
