package reflink

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
)

// From the kernel's include/uapi/linux/fiemap.h.
const (
	ioctlFiemap      = 0xC020660B
	fiemapSync       = 0x1
	extentLast       = 0x1
	extentUnknown    = 0x2
	extentDelalloc   = 0x4
	extentEncoded    = 0x8
	extentNotAligned = 0x100
	extentInline     = 0x200
	extentTail       = 0x400
	extentUnwritten  = 0x800
	// extentUnplaced are the flags of extents whose physical address says nothing about their content.
	extentUnplaced = extentUnknown | extentDelalloc | extentEncoded | extentNotAligned | extentInline | extentTail
)

// pageExtents is how many extents a call returns. The kernel holds the file's lock for as long.
const pageExtents = 4096

// fiemapExtent is struct fiemap_extent.
type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// fiemapPage is struct fiemap with room for its extents.
type fiemapPage struct {
	start, length                  uint64
	flags, mapped, count, reserved uint32
	extents                        [pageExtents]fiemapExtent
}

// mapping is a part of a file that may hold other bytes than zeroes.
type mapping struct {
	extent.Extent
	physical int64 // where the first byte is on the file system's device
	placed   bool  // the same address in another file means the same bytes
}

// fileMappings returns the mappings of a file in order, up to size. Unwritten extents are holes: reflinks do not share
// them, and nobody can read what is there.
func fileMappings(ctx context.Context, f *os.File, size int64) iter.Seq2[mapping, error] {
	return func(yield func(mapping, error) bool) {
		for e, err := range fileExtents(ctx, f) {
			if err != nil {
				yield(mapping{}, err)
				return
			}
			if e.flags&extentUnwritten != 0 {
				continue
			}
			part := extent.Extent{Offset: int64(e.logical), Length: int64(e.length)}.Intersect(extent.Extent{Length: size})
			m := mapping{Extent: part, physical: int64(e.physical), placed: e.flags&extentUnplaced == 0}
			if !part.Empty() && !yield(m, nil) {
				return
			}
		}
	}
}

// fileExtents returns the extents of a file in order, after what was written to it has reached its place.
func fileExtents(ctx context.Context, f *os.File) iter.Seq2[fiemapExtent, error] {
	return func(yield func(fiemapExtent, error) bool) {
		page := new(fiemapPage)
		for start := uint64(0); ; {
			if err := ctx.Err(); err != nil {
				yield(fiemapExtent{}, err)
				return
			}
			page.start, page.length, page.flags, page.count = start, math.MaxInt64-start, fiemapSync, pageExtents
			if err := readExtents(f, page); err != nil {
				yield(fiemapExtent{}, err)
				return
			}
			for _, e := range page.extents[:page.mapped] {
				if !yield(e, nil) || e.flags&extentLast != 0 {
					return
				}
			}
			if page.mapped == 0 {
				return
			}
			last := page.extents[page.mapped-1]
			start = max(start+1, last.logical+last.length)
		}
	}
}

func readExtents(f *os.File, page *fiemapPage) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlFiemap, uintptr(unsafe.Pointer(page)))
		switch {
		case errors.Is(errno, unix.EINTR):
			continue
		case errno != 0:
			return fmt.Errorf("list the extents of %s: %w", f.Name(), errno)
		case page.mapped > pageExtents:
			return fmt.Errorf("list the extents of %s: %d extents in a page of %d", f.Name(), page.mapped, pageExtents)
		}
		return nil
	}
}

// hasMoreExtents reports whether a file has more than limit extents, without listing more of them.
func hasMoreExtents(ctx context.Context, f *os.File, limit int) (bool, error) {
	n := 0
	for _, err := range fileExtents(ctx, f) {
		if n++; err != nil || n > limit {
			return err == nil, err
		}
	}
	return false, nil
}
