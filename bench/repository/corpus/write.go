package corpus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// Noise returns a reader of bytes that do not compress. They are the same for the same seed and stream.
func Noise(seed, stream uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	binary.LittleEndian.PutUint64(key[8:], stream)
	return rand.NewChaCha8(key)
}

// zeroes is an endless reader of zeros.
type zeroes struct{}

// Read implements io.Reader.
func (zeroes) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// copyBytes is how much is written at once.
const copyBytes = 1 << 20

// Write writes the image at path, in place of any existing file, and makes it durable.
func Write(ctx context.Context, path string, seed uint64, imageBytes int64, runs []Run, system *Files) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(imageBytes); err != nil {
		return err
	}
	files := system.openReader()
	defer func() { err = errors.Join(err, files.Close()) }()
	sources := [kinds]io.Reader{System: files, Text: newText(seed), Random: Noise(seed, 0), Zero: zeroes{}}
	buffer := make([]byte, copyBytes)
	for _, r := range runs {
		for at := r.Offset; at < r.End(); at += copyBytes {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			part := buffer[:min(copyBytes, r.End()-at)]
			if _, err := io.ReadFull(sources[r.Kind], part); err != nil {
				return fmt.Errorf("image %s: %w", path, err)
			}
			if _, err := f.WriteAt(part, at); err != nil {
				return err
			}
		}
	}
	return f.Sync()
}
