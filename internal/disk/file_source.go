package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/disk/hole"
	"github.com/varvebackup/varve/internal/extent"
)

// fileSource is a raw disk in a regular file or on a block device.
type fileSource struct {
	f       *os.File
	regular bool
	bytes   int64
	id      identity
}

func openFileSource(path string) (*fileSource, error) {
	if _, err := statDisk(path); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s, err := newFileSource(f)
	if err != nil {
		unlock(f)
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

func newFileSource(f *os.File) (*fileSource, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	s := &fileSource{f: f, regular: info.Mode().IsRegular()}
	if s.bytes, err = f.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	if s.bytes == 0 {
		return nil, errorf(ErrInvalid, "disk %s is empty", f.Name())
	}
	if s.id, err = identityOf(f); err != nil {
		return nil, err
	}
	if err := errors.Join(share(f), whole(f.Name(), s.id)); err != nil {
		return nil, err
	}
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL) // only advice
	return s, nil
}

// statDisk says what is at path, which is a regular file or a block device.
func statDisk(path string) (fs.FileInfo, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errorf(ErrNotFound, "disk %s: %w", path, fs.ErrNotExist)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeDevice:
		return nil, errorf(ErrInvalid, "disk %s is neither a file nor a block device (%s)", path, info.Mode())
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
	if err := within(s.f.Name(), s.bytes, offset, len(p)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, err := s.f.ReadAt(p, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if changed := s.unchanged(); changed != nil || err == nil {
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
	return &set, s.unchanged()
}

// unchanged is an error if the file has another size now.
func (s *fileSource) unchanged() error {
	if !s.regular {
		return nil
	}
	var st unix.Stat_t // os.File.Stat would allocate one for each read
	if err := unix.Fstat(int(s.f.Fd()), &st); err != nil {
		return fmt.Errorf("disk %s: %w", s.f.Name(), os.NewSyscallError("fstat", err))
	}
	if st.Size != s.bytes {
		return errorf(ErrChanged, "disk %s had %d bytes when it was opened and has %d now: read it again while nobody resizes it", s.f.Name(), s.bytes, st.Size)
	}
	return nil
}

// Close implements Source.
func (s *fileSource) Close() error {
	unlock(s.f)
	return s.f.Close()
}

// within refuses what is not on the disk.
func within(name string, bytes, offset int64, length int) error {
	if e := (extent.Extent{Offset: offset, Length: int64(length)}); !e.Valid() || e.End() > bytes {
		return errorf(ErrInvalid, "disk %s: %s is not within its %d bytes", name, e, bytes)
	}
	return nil
}
