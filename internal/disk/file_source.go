package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/disk/hole"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// fileSource is a raw disk in a regular file or on a block device.
type fileSource struct {
	f       *os.File
	regular bool
	bytes   int64
	id      identity
}

func openFileSource(path string, ignoreLocks bool) (*fileSource, error) {
	f, id, err := openToRead(path, ignoreLocks)
	if err != nil {
		return nil, err
	}
	s := &fileSource{f: f, id: id}
	if err := s.measureSize(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL) // only advice
	return s, nil
}

func (s *fileSource) measureSize() error {
	info, err := s.f.Stat()
	if err != nil {
		return err
	}
	s.regular = info.Mode().IsRegular()
	if s.bytes, err = s.f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if s.bytes == 0 {
		return errclass.Errorf(errclass.Invalid, "disk %s is empty", s.f.Name())
	}
	return nil
}

// openToRead opens a file or block device and takes its lock. It refuses a disk with an unfinished restore and, unless
// ignoreLocks is set, a disk that something else writes.
func openToRead(path string, ignoreLocks bool) (*os.File, identity, error) {
	info, err := statDisk(path)
	if err != nil {
		return nil, identity{}, err
	}
	f, err := openDisk(path, info, ignoreLocks)
	if err != nil {
		return nil, identity{}, err
	}
	id, err := identityOf(f)
	if err == nil {
		err = errors.Join(lockToRead(f, ignoreLocks), refuseUnfinished(path, id))
	}
	if err != nil {
		unlockFile(f)
		return nil, identity{}, errors.Join(err, f.Close())
	}
	return f, id, nil
}

// A device stays busy for a moment after this process has closed it while starting a child: the child holds the
// descriptor until the kernel closes it in the child's exec.
const (
	busyAttempts = 20
	busyWait     = 10 * time.Millisecond
)

// openDisk opens what statDisk has looked at, and checks that it is still the same kind of file. Whatever has taken its
// place in between must neither block the open nor be read.
func openDisk(path string, info fs.FileInfo, ignoreLocks bool) (*os.File, error) {
	flags := os.O_RDONLY | unix.O_NONBLOCK
	if !info.Mode().IsRegular() && !ignoreLocks {
		flags |= unix.O_EXCL // refuses a device that is mounted, swapped to, or part of another device, and prevents that while it is read
	}
	f, err := os.OpenFile(path, flags, 0)
	for range busyAttempts {
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(busyWait) //nolint:forbidigo // nothing tells when a child has closed a file
		f, err = os.OpenFile(path, flags, 0)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil, errclass.Errorf(ErrInUse, "disk %s is in use (mounted, swapped to, part of another device, or the target of a restore that runs), so that a copy could be of no point in time: unmount it, or read a snapshot of it (lsblk %s shows by what)", path, path)
	}
	if err != nil {
		return nil, err
	}
	now, err := f.Stat()
	if err == nil && now.Mode().Type() != info.Mode().Type() {
		err = errclass.Errorf(ErrChanged, "disk %s was replaced by something else while it was opened", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// statDisk returns the info of what is at path. It refuses anything but a regular file or a block device.
func statDisk(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errclass.Errorf(ErrNotFound, "disk %s: %w", path, fs.ErrNotExist)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeDevice:
		return nil, errclass.Errorf(ErrArgument, "disk %s is neither a file nor a block device (%s)", path, info.Mode())
	}
	return info, nil
}

// Bytes implements Source.
func (s *fileSource) Bytes() int64 { return s.bytes }

// Identity implements Source.
func (s *fileSource) Identity() string { return s.id.name }

// Changes implements Source.
func (s *fileSource) Changes(context.Context) (*extent.Set, error) { return nil, nil } //nolint:nilnil // as Source says

// ReadAt implements Source.
func (s *fileSource) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if err := checkWithin(s.f.Name(), s.bytes, offset, len(p)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, err := s.f.ReadAt(p, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if changed := s.checkUnchanged(); changed != nil || err == nil {
		return changed
	}
	return fmt.Errorf("read disk %s: %w at %d", s.f.Name(), io.ErrUnexpectedEOF, offset)
}

// Data implements Source.
func (s *fileSource) Data(ctx context.Context) (*extent.Set, error) {
	if !s.regular {
		return nil, nil //nolint:nilnil // as Source says: nobody knows where a device is zero
	}
	var set extent.Set
	for at := int64(0); at < s.bytes; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		e, err := hole.NextData(s.f, extent.Extent{Offset: at, Length: s.bytes - at})
		if err != nil {
			return nil, fmt.Errorf("find data of disk %s: %w", s.f.Name(), err)
		}
		if e.Empty() {
			break
		}
		e = e.Widen(granuleBytes, s.bytes)
		set.Append(e)
		at = e.End()
	}
	return &set, s.checkUnchanged()
}

// checkUnchanged returns an error if the size of the file has changed.
func (s *fileSource) checkUnchanged() error {
	if !s.regular {
		return nil
	}
	var st unix.Stat_t // os.File.Stat would allocate one for each read
	if err := unix.Fstat(int(s.f.Fd()), &st); err != nil {
		return fmt.Errorf("disk %s: %w", s.f.Name(), os.NewSyscallError("fstat", err))
	}
	if st.Size != s.bytes {
		return errclass.Errorf(ErrChanged, "disk %s had %d bytes when it was opened and has %d now: read it again while nobody resizes it", s.f.Name(), s.bytes, st.Size)
	}
	return nil
}

// Close implements Source.
func (s *fileSource) Close() error {
	unlockFile(s.f)
	return s.f.Close()
}

// checkWithin refuses an extent that is not on the disk.
func checkWithin(name string, bytes, offset int64, length int) error {
	if e := (extent.Extent{Offset: offset, Length: int64(length)}); !e.Valid() || e.End() > bytes {
		return errclass.Errorf(errclass.Invalid, "disk %s: %s is not within its %d bytes", name, e, bytes)
	}
	return nil
}
