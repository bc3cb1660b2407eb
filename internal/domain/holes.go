package domain

import (
	"bytes"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// holeBytes is the size of what is freed at least: a block of the usual file systems. It must be this small: QEMU
// counts the blocks of clusters that are nearly empty.
const holeBytes = 4 << 10

// digHoles frees the zero blocks of a file, as fallocate --dig-holes does: its content stays the same.
// A file system that cannot do it leaves the file as it is.
func digHoles(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = punchZeroes(f)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

func punchZeroes(f *os.File) error {
	buf := make([]byte, 256*holeBytes)
	for at := int64(0); ; at += int64(len(buf)) {
		n, err := f.ReadAt(buf, at)
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return err
		}
		if err := punchWithin(f, at, buf[:n]); err != nil {
			return err
		}
		if end {
			return nil
		}
	}
}

// punchWithin frees the runs of zero blocks in data, which is what the file has at this offset.
func punchWithin(f *os.File, offset int64, data []byte) error {
	var zero [holeBytes]byte
	for at := 0; at < len(data); {
		end := at
		for end < len(data) {
			block := data[end:min(end+holeBytes, len(data))]
			if !bytes.Equal(block, zero[:len(block)]) {
				break
			}
			end += len(block)
		}
		if end == at {
			at += holeBytes
			continue
		}
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset+int64(at), int64(end-at))
		if err != nil {
			return os.NewSyscallError("fallocate", err)
		}
		at = end
	}
	return nil
}
