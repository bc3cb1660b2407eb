package sparse

import (
	"context"
	"errors"
	"io"
	"os"
)

// copyUnit is the smallest hole that Copy leaves: a block of the usual file systems.
const copyUnit = 4 << 10

// Copy copies the content of from into the empty file to, and leaves out the blocks that hold nothing but zeroes. It ends early
// with ctx.
func Copy(ctx context.Context, to, from *os.File) error {
	buf := make([]byte, bufferBytes)
	for at := int64(0); ; at += int64(len(buf)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := from.ReadAt(buf, at)
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return err
		}
		if err := WriteData(to, at, buf[:n]); err != nil {
			return err
		}
		if end {
			return to.Truncate(at + int64(n))
		}
	}
}

// WriteData writes the blocks of data that are not zero to a file that has nothing at their place yet.
func WriteData(to *os.File, offset int64, data []byte) error {
	for at := 0; at < len(data); {
		end := at
		for end < len(data) && !IsZero(data[end:min(end+copyUnit, len(data))]) {
			end += min(copyUnit, len(data)-end)
		}
		if end == at {
			at += copyUnit
			continue
		}
		if _, err := to.WriteAt(data[at:end], offset+int64(at)); err != nil {
			return err
		}
		at = end
	}
	return nil
}
