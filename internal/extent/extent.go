// Package extent is the vocabulary of the data path: which bytes of a disk something is said about. Offsets and lengths are bytes.
// Values are not safe for concurrent change; reading them from many goroutines is.
package extent

import (
	"fmt"
	"math"
)

// Extent is the bytes [Offset, Offset+Length) of a disk. Offset and Length are not negative and their sum does not
// overflow: Valid says so, and everything else here presumes it.
type Extent struct {
	Offset int64
	Length int64
}

// Valid says whether e is within what a disk can have.
func (e Extent) Valid() bool {
	return e.Offset >= 0 && e.Length >= 0 && e.Length <= math.MaxInt64-e.Offset
}

// End is the offset of the first byte after e.
func (e Extent) End() int64 { return e.Offset + e.Length }

// Empty says whether e has no bytes.
func (e Extent) Empty() bool { return e.Length == 0 }

// Contains says whether every byte of o is in e.
func (e Extent) Contains(o Extent) bool { return o.Offset >= e.Offset && o.End() <= e.End() }

// Intersect is what e and o have in common; empty if nothing.
func (e Extent) Intersect(o Extent) Extent {
	start, end := max(e.Offset, o.Offset), min(e.End(), o.End())
	if start >= end {
		return Extent{}
	}
	return Extent{Offset: start, Length: end - start}
}

// Widen is the smallest extent that contains e, begins at a multiple of block and ends at one or at size. block is a power of
// two, e ends at size at most. An empty extent stays empty.
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

// String is "offset+length".
func (e Extent) String() string { return fmt.Sprintf("%d+%d", e.Offset, e.Length) }
