package scrub

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/disk/hole"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
)

// alignBytes is what reads past the page cache are aligned to: in memory, in the file and in their length.
const alignBytes = 4 << 10

// reader reads pieces past the page cache: what the disk has, and not what was written once.
type reader struct {
	buffer []byte // of a piece, aligned
	zero   disk.PieceHash
}

func newReader() *reader {
	r := newPartReader()
	r.zero = sha256.Sum256(r.buffer)
	return r
}

// newPartReader returns a reader for readPart alone.
func newPartReader() *reader {
	raw := make([]byte, disk.PieceBytes+alignBytes)
	skip := (alignBytes - int(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))%alignBytes)) % alignBytes
	return &reader{buffer: raw[skip : skip+disk.PieceBytes]}
}

// hashPiece returns the hash of what a file has in e, which is at most a piece and begins at a multiple of one, and how
// many bytes were read for that. A hole is not read.
func (r *reader) hashPiece(path string, e extent.Extent) (h disk.PieceHash, read int64, err error) {
	f, direct, err := openDirect(path)
	if err != nil {
		return h, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err := hole.NextData(f, e)
	if err != nil {
		return h, 0, err
	}
	if data.Empty() && e.Length == disk.PieceBytes {
		return r.zero, 0, nil
	}
	read, err = r.readFile(f, direct, e)
	if err != nil {
		return h, read, err
	}
	return sha256.Sum256(r.buffer[:e.Length]), e.Length, nil
}

// readPart reads what a file has in e, which is at most a piece and begins at a multiple of alignBytes. The bytes are
// valid until the next read.
func (r *reader) readPart(path string, e extent.Extent) (p []byte, err error) {
	f, direct, err := openDirect(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := r.readFile(f, direct, e); err != nil {
		return nil, err
	}
	return r.buffer[:e.Length], nil
}

// readFile fills the buffer with what a file has in e.
func (r *reader) readFile(f *os.File, direct bool, e extent.Extent) (read int64, err error) {
	if !direct {
		if err := unix.Fadvise(int(f.Fd()), e.Offset, e.Length, unix.FADV_DONTNEED); err != nil {
			return 0, fmt.Errorf("drop the page cache of %s: %w", f.Name(), err)
		}
	}
	end := (e.Length + alignBytes - 1) / alignBytes * alignBytes
	for at := int64(0); at < e.Length; {
		n, err := unix.Pread(int(f.Fd()), r.buffer[at:end], e.Offset+at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return at, fmt.Errorf("read %s of %s: %w", e, f.Name(), err)
		}
		at += int64(n)
		if at < e.Length && (n == 0 || at%alignBytes != 0) {
			return at, fmt.Errorf("read %s of %s: %w", e, f.Name(), io.ErrUnexpectedEOF)
		}
	}
	return e.Length, nil
}

// openDirect opens a file to read it past the page cache, if its file system can.
func openDirect(path string) (f *os.File, direct bool, err error) {
	f, err = os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if errors.Is(err, unix.EINVAL) {
		f, err = os.Open(path)
		return f, false, err
	}
	return f, true, err
}

// checkAnswers returns an error if a disk does not even give back its header: then its file system is shut down or its
// device is gone, which says nothing about a copy.
func (r *reader) checkAnswers(dir string) error {
	_, _, err := r.hashPiece(filepath.Join(dir, headerFile), extent.Extent{Length: 2})
	return err
}

// headerFile is the file that makes a directory a disk (package reflink).
const headerFile = "varve-disk.json"

const (
	ioprioWhoProcess = 1
	ioprioIdle       = 3 << 13
)

// lowerPriority makes the reads of this thread wait for all others, if the device's scheduler supports that. Otherwise
// only the rate limits them.
func lowerPriority() {
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, 0, ioprioIdle)
}
