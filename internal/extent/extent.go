// Package extent describes ranges and sets of bytes of a disk, for the whole data path. Offsets and lengths are bytes.
// Values are safe for concurrent reading, but not for concurrent change.
package extent

import (
	"fmt"
	"math"
)

// Extent is the bytes [Offset, Offset+Length) of a disk. Offset and Length are not negative, and their sum does not
// overflow. Valid checks that; everything else here assumes it.
type Extent struct {
	Offset int64
	Length int64
}

// Valid reports whether e fits on any disk: nothing is negative, and the end does not overflow.
func (e Extent) Valid() bool {
	return e.Offset >= 0 && e.Length >= 0 && e.Length <= math.MaxInt64-e.Offset
}

// End returns the offset of the first byte after e.
func (e Extent) End() int64 { return e.Offset + e.Length }

// Empty reports whether e has no bytes.
func (e Extent) Empty() bool { return e.Length == 0 }

// Contains reports whether every byte of o is in e.
func (e Extent) Contains(o Extent) bool { return o.Offset >= e.Offset && o.End() <= e.End() }

// Intersect returns what e and o have in common, or an empty extent.
func (e Extent) Intersect(o Extent) Extent {
	start, end := max(e.Offset, o.Offset), min(e.End(), o.End())
	if start >= end {
		return Extent{}
	}
	return Extent{Offset: start, Length: end - start}
}

// Widen returns the smallest extent that contains e, begins at a multiple of block, and ends at one or at size. block
// is a power of two, and e must not end after size. An empty extent stays empty.
func (e Extent) Widen(block, size int64) Extent {
	if e.Empty() {
		return Extent{Offset: e.Offset &^ (block - 1)}
	}
	start := e.Offset &^ (block - 1)
	end := size
	if last := (e.End() - 1) &^ (block - 1); last <= size-block {
		end = last + block
	}
	return Extent{Offset: start, Length: end - start}
}

// String returns "offset+length".
func (e Extent) String() string { return fmt.Sprintf("%d+%d", e.Offset, e.Length) }
