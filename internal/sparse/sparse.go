// Package sparse frees the blocks of files that hold nothing but zeroes. The content stays the same; only the space that it takes
// on the file system shrinks.
package sparse

import (
	"bytes"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// bufferBytes is how much is read at once.
const bufferBytes = 1 << 20

// Dig frees the zero blocks of the file at path, as fallocate --dig-holes does. If the file system cannot do that, the file stays
// as it is. unitBytes is the size of a block, a power of two from 4 KiB to 1 MiB. A smaller one finds more zeroes, in more
// extents.
func Dig(path string, unitBytes int) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(punchZeroes(f, unitBytes), f.Close())
}

func punchZeroes(f *os.File, unitBytes int) error {
	buf := make([]byte, bufferBytes)
	for at := int64(0); ; at += int64(len(buf)) {
		n, err := f.ReadAt(buf, at)
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return err
		}
		if err := Punch(f, at, buf[:n], unitBytes); err != nil || end {
			return err
		}
	}
}

// Punch frees the zero blocks in data, which is what the file holds at offset, a multiple of unitBytes. The file must be open for
// writing, and nothing else may write it. If the file system cannot do that, the file stays as it is.
func Punch(f *os.File, offset int64, data []byte, unitBytes int) error {
	for at := 0; at < len(data); {
		end := at
		for end < len(data) && IsZero(data[end:min(end+unitBytes, len(data))]) {
			end += min(unitBytes, len(data)-end)
		}
		if end == at {
			at += unitBytes
			continue
		}
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset+int64(at), int64(end-at))
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("fallocate", err)
		}
		at = end
	}
	return nil
}

// zeroes is what blocks are compared with.
var zeroes [4 << 10]byte

// IsZero reports whether every byte of a block is zero.
func IsZero(block []byte) bool {
	for len(block) > 0 {
		n := min(len(block), len(zeroes))
		if !bytes.Equal(block[:n], zeroes[:n]) {
			return false
		}
		block = block[n:]
	}
	return true
}
