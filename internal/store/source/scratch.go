package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/handover"
)

// spareBytes is how much of the scratch directory's space stays free, so that the pod is not evicted for it.
const spareBytes = 64 << 20

// convertScratch converts a qcow2 image that can only be read from the beginning to the end: it is stored first.
func (j *job) convertScratch(ctx context.Context, c *content, s *stream) (bytes int64, err error) {
	f, err := os.CreateTemp(j.options.Scratch, "image-")
	if err != nil {
		return 0, fmt.Errorf("store the image for its conversion: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := os.Remove(f.Name()); err != nil { // Nothing is left of it, however this process ends.
		return 0, fmt.Errorf("store the image for its conversion: %w", err)
	}
	stored, err := j.store(ctx, f, c, s)
	if err != nil {
		return 0, err
	}
	return j.convert(ctx, &scratchImage{file: f, bytes: stored})
}

// store writes the image to a file, and returns its size in bytes.
func (j *job) store(ctx context.Context, f *os.File, c *content, s *stream) (int64, error) {
	var space unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &space); err != nil {
		return 0, fmt.Errorf("find out how much space %s has: %w", j.options.Scratch, err)
	}
	free := max(0, min(handover.ScratchBytes, int64(space.Bavail)*space.Bsize)-spareBytes)
	full := errclass.Errorf(errclass.Exhausted, "the qcow2 image has to be stored before it is converted, and %s has "+
		"room for %d bytes only: offer it uncompressed on a server that supports range requests, or offer a raw image",
		j.options.Scratch, free)
	if !c.compressed && s.version.bytes > free {
		return 0, full
	}
	buffer, stored := make([]byte, bufferBytes), int64(0)
	for {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		n, err := fill(c, buffer)
		if stored+int64(n) > free {
			return 0, full
		}
		if _, werr := f.WriteAt(buffer[:n], stored); errclass.IsFull(werr) {
			return 0, full
		} else if werr != nil {
			return 0, fmt.Errorf("store the image for its conversion: %w", werr)
		}
		stored += int64(n)
		if err == io.EOF { //nolint:errorlint // A wrapped io.EOF is another error.
			return stored, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// scratchImage is a stored image.
type scratchImage struct {
	file  *os.File
	bytes int64
}

// Size implements nbd.Backend.
func (i *scratchImage) Size() int64 { return i.bytes }

// ReadAt implements nbd.Backend.
func (i *scratchImage) ReadAt(_ context.Context, p []byte, offset int64) error {
	if _, err := i.file.ReadAt(p, offset); err != nil {
		return fmt.Errorf("read the stored image: %w", err)
	}
	return nil
}
