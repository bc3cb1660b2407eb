package download

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/sparse"
)

// namedDigits is how many digits of an image's checksum are in the name of its part.
const namedDigits = 12

// LocalError is an error of the file or the stream that an image goes to. Another copy of the image does not help.
type LocalError struct {
	Path string
	Err  error
}

func (e *LocalError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *LocalError) Unwrap() error { return e.Err }

// newLocalError returns what is wrong with a path. It has the class Exhausted if there is no room.
func newLocalError(path string, err error) error {
	if err == nil {
		return nil
	}
	if errclass.IsFull(err) || errors.Is(err, unix.EFBIG) {
		err = errclass.Errorf(errclass.Exhausted, "%w", err)
	}
	return &LocalError{Path: path, Err: err}
}

// File is a file that an image goes to. Until it is whole, what is there is in a file beside it, whose name has the
// beginning of the image's checksum: the part of another image is another file.
type File struct {
	path, part string
	replace    bool
	finished   bool // the part is not there any more
	file       *os.File
}

// PartPath returns the path of what is there of an image before its file is whole.
func PartPath(path, checksum string) string {
	return path + "." + checksum[:min(namedDigits, len(checksum))] + ".part"
}

// OpenFile opens the part of a file, and keeps others from writing it until Close. An error is Conflict if the file is
// there and is not to be replaced, or if another command writes the part.
func OpenFile(path, checksum string, replace bool) (*File, error) {
	if err := checkPath(path, replace); err != nil {
		return nil, err
	}
	f := &File{path: path, part: PartPath(path, checksum), replace: replace}
	file, err := os.OpenFile(f.part, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, newLocalError(f.part, withoutPath(err))
	}
	if err := lockPart(file, f.part); err != nil {
		return nil, newLocalError(f.part, errors.Join(err, file.Close()))
	}
	f.file = file
	return f, nil
}

// checkPath returns an error unless a new file can get a path.
func checkPath(path string, replace bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return newLocalError(path, withoutPath(err))
	case !info.Mode().IsRegular():
		return newLocalError(path, errclass.Errorf(errclass.Invalid, "it is not a regular file: give another name"))
	case !replace:
		return newLocalError(path, ErrExists)
	}
	return nil
}

// ErrExists is the error of a file that is there and is not to be replaced.
var ErrExists = errclass.New(errclass.Conflict, "the file exists already")

// lockPart keeps other commands away. A part that another command has just finished has another name by now.
func lockPart(file *os.File, path string) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errclass.Errorf(errclass.Conflict, "another command is writing it")
	}
	if err != nil {
		return fmt.Errorf("lock it: %w", err)
	}
	opened, err := file.Stat()
	if err != nil {
		return withoutPath(err)
	}
	if !opened.Mode().IsRegular() {
		return errclass.Errorf(errclass.Invalid, "it is not a regular file: remove it")
	}
	named, err := os.Lstat(path)
	if err != nil || !os.SameFile(opened, named) {
		return errclass.Errorf(errclass.Conflict, "another command has just finished or replaced it")
	}
	return nil
}

// withoutPath removes the paths from an error that gets one anew.
func withoutPath(err error) error {
	if pathError := (&fs.PathError{}); errors.As(err, &pathError) {
		return fmt.Errorf("%s: %w", pathError.Op, pathError.Err)
	}
	if linkError := (&os.LinkError{}); errors.As(err, &linkError) {
		return fmt.Errorf("%s: %w", linkError.Op, linkError.Err)
	}
	return err
}

// Close lets others write the part. One that is empty is deleted.
func (f *File) Close() error {
	var err error
	if info, statErr := f.file.Stat(); statErr == nil && info.Size() == 0 && !f.finished {
		err = os.Remove(f.part)
	}
	return errors.Join(err, f.file.Close())
}

// Part returns the path of what is there before the file is whole.
func (f *File) Part() string { return f.part }

// Load implements [Destination], as do the others.
func (f *File) Load(p []byte, offset int64) (bool, error) {
	n, err := f.file.ReadAt(p, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, newLocalError(f.part, withoutPath(err))
	}
	clear(p[n:])
	return n > 0, nil
}

// Begin implements [Destination].
func (f *File) Begin(offset int64) error { return f.truncatePart(offset) }

func (f *File) truncatePart(bytes int64) error {
	return newLocalError(f.part, withoutPath(f.file.Truncate(bytes)))
}

// WritePiece implements [Destination]. Blocks that are zero stay holes.
func (f *File) WritePiece(p []byte, offset int64) error {
	return newLocalError(f.part, withoutPath(sparse.WriteData(f.file, offset, p)))
}

// Finish implements [Destination]. The file has its name when everything in it is durable.
func (f *File) Finish(bytes int64) error {
	if err := f.truncatePart(bytes); err != nil {
		return err
	}
	if err := f.file.Sync(); err != nil {
		return newLocalError(f.part, withoutPath(err))
	}
	if err := f.renamePart(); err != nil {
		return err
	}
	f.finished = true
	return newLocalError(filepath.Dir(f.path), withoutPath(durable.Sync(filepath.Dir(f.path))))
}

// renamePart replaces a file only if that was asked for, also one that appeared meanwhile.
func (f *File) renamePart() error {
	if f.replace {
		if err := checkPath(f.path, true); err != nil {
			return err
		}
		return newLocalError(f.path, withoutPath(os.Rename(f.part, f.path)))
	}
	err := unix.Renameat2(unix.AT_FDCWD, f.part, unix.AT_FDCWD, f.path, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return newLocalError(f.path, ErrExists)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // The file system cannot do that.
		if err := checkPath(f.path, false); err != nil {
			return err
		}
		err = withoutPath(os.Rename(f.part, f.path))
	}
	return newLocalError(f.path, err)
}

// Discard implements [Destination].
func (f *File) Discard() error {
	f.finished = true
	return newLocalError(f.part, withoutPath(os.Remove(f.part)))
}

// Stream is a stream that an image goes to. It has nothing from an earlier run.
type Stream struct{ To io.Writer }

// Load implements [Destination], as do the others.
func (*Stream) Load([]byte, int64) (bool, error) { return false, nil }

// Begin implements [Destination].
func (*Stream) Begin(int64) error { return nil }

// WritePiece implements [Destination].
func (s *Stream) WritePiece(p []byte, _ int64) error {
	_, err := s.To.Write(p)
	return newLocalError("standard output", withoutPath(err))
}

// Finish implements [Destination].
func (*Stream) Finish(int64) error { return nil }

// Discard implements [Destination]. The reader has everything already, and learns from the exit code that it is wrong.
func (*Stream) Discard() error { return nil }

// DefaultFile returns the name of the file of an image whose user gives none.
func DefaultFile(image string) string { return strings.TrimSuffix(image, ".raw") + ".raw" }
