// Package hole finds where a regular file has data and where it has holes, which read as zeroes, as far as its file
// system knows.
package hole

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
)

// NextData returns the first extent of data in within, or an empty one if there is none. What a file system cannot tell
// apart counts as data. A file that shrinks meanwhile has no data past its new end; a caller who minds compares sizes
// afterwards. NextData is safe for concurrent use with everything but reads and writes at the file's own position,
// which it moves.
func NextData(f *os.File, within extent.Extent) (extent.Extent, error) {
	if within.Empty() {
		return extent.Extent{}, nil
	}
	start, err := f.Seek(within.Offset, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return extent.Extent{}, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return within, nil
	case err != nil:
		return extent.Extent{}, err
	case start >= within.End():
		return extent.Extent{}, nil
	}
	end, err := f.Seek(start, unix.SEEK_HOLE)
	if errors.Is(err, unix.ENXIO) { // the file ends before start by now
		return extent.Extent{}, nil
	}
	if err != nil {
		return extent.Extent{}, err
	}
	return extent.Extent{Offset: start, Length: min(end, within.End()) - start}, nil
}
