package files

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxExtents bounds how many extents of data are told apart in one file. Beyond it, short holes count as data.
	maxExtents = 1 << 14
	// minHoleBytes is the shortest hole that is worth its entry.
	minHoleBytes = 64 << 10
)

// extent is a part of a file.
type extent struct{ offset, length int64 }

func (e extent) end() int64 { return e.offset + e.length }

// mayHaveHoles says that a file takes less space than it is long.
func mayHaveHoles(st *unix.Stat_t) bool { return st.Size >= minHoleBytes && st.Blocks*512 < st.Size }

// dataExtents returns the parts of a file that are not holes, in order. The file is one part if the file system does not know.
func dataExtents(f *os.File, size int64) (out []extent, err error) {
	shortest := int64(minHoleBytes)
	for at := int64(0); at < size; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // The rest is a hole.
		}
		if errors.Is(err, unix.EINVAL) {
			return []extent{{length: size}}, nil
		}
		if err != nil {
			return nil, os.NewSyscallError("lseek", err)
		}
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return nil, os.NewSyscallError("lseek", err)
		}
		start, end = min(start, size), min(end, size)
		if end <= start {
			break
		}
		if out = addExtent(out, extent{start, end - start}, shortest); len(out) > maxExtents {
			shortest *= 4
			out = joinExtents(out, shortest)
		}
		at = end
	}
	return out, nil
}

// addExtent adds e at the end. If the hole before it is shorter than shortest, that is data, too.
func addExtent(all []extent, e extent, shortest int64) []extent {
	if n := len(all); n > 0 && e.offset-all[n-1].end() < shortest {
		all[n-1].length = e.end() - all[n-1].offset
		return all
	}
	return append(all, e)
}

func joinExtents(all []extent, shortest int64) []extent {
	out := all[:0]
	for _, e := range all {
		out = addExtent(out, e, shortest)
	}
	return out
}
