package extent

import (
	"cmp"
	"iter"
	"slices"
)

// Set is a set of bytes of a disk: sorted extents, none empty, with at least one byte between any two. The zero value is the empty set.
type Set struct {
	extents []Extent
}

// NewSet returns the union of extents, which may be in any order.
func NewSet(extents ...Extent) Set {
	sorted := slices.DeleteFunc(slices.Clone(extents), Extent.Empty)
	slices.SortFunc(sorted, func(a, b Extent) int { return cmp.Compare(a.Offset, b.Offset) })
	var s Set
	for _, e := range sorted {
		s.Append(e)
	}
	return s
}

// Append adds e, which must not begin before the set's last extent. It builds a set from sorted input; Union is for
// everything else.
func (s *Set) Append(e Extent) {
	if e.Empty() {
		return
	}
	if n := len(s.extents); n > 0 && e.Offset <= s.extents[n-1].End() {
		last := &s.extents[n-1]
		last.Length = max(last.End(), e.End()) - last.Offset
		return
	}
	s.extents = append(s.extents, e)
}

// All returns the extents in order.
func (s Set) All() iter.Seq[Extent] { return slices.Values(s.extents) }

// Len returns the number of extents.
func (s Set) Len() int { return len(s.extents) }

// Empty reports whether the set has no bytes.
func (s Set) Empty() bool { return len(s.extents) == 0 }

// Bytes returns the number of bytes in the set.
func (s Set) Bytes() int64 {
	var n int64
	for _, e := range s.extents {
		n += e.Length
	}
	return n
}

// Within returns the parts of the set's extents that are in e, in order.
func (s Set) Within(e Extent) iter.Seq[Extent] {
	return func(yield func(Extent) bool) {
		first, _ := slices.BinarySearchFunc(s.extents, e.Offset, func(x Extent, at int64) int {
			if x.End() <= at {
				return -1
			}
			return 1
		})
		for _, x := range s.extents[first:] {
			if x.Offset >= e.End() {
				return
			}
			if part := x.Intersect(e); !part.Empty() && !yield(part) {
				return
			}
		}
	}
}

// Contains reports whether every byte of e is in the set.
func (s Set) Contains(e Extent) bool {
	for part := range s.Within(e) {
		return part == e
	}
	return e.Empty()
}

// Overlaps reports whether any byte of e is in the set.
func (s Set) Overlaps(e Extent) bool {
	for range s.Within(e) {
		return true
	}
	return false
}

// Union returns the bytes that are in s or o.
func (s Set) Union(o Set) Set { return NewSet(slices.Concat(s.extents, o.extents)...) }

// Intersect returns the bytes that are in both s and o.
func (s Set) Intersect(o Set) Set {
	var out Set
	for _, e := range s.extents {
		for part := range o.Within(e) {
			out.Append(part)
		}
	}
	return out
}

// Subtract returns the bytes of s that are not in o.
func (s Set) Subtract(o Set) Set {
	var out Set
	for _, e := range s.extents {
		at := e.Offset
		for part := range o.Within(e) {
			out.Append(Extent{Offset: at, Length: part.Offset - at})
			at = part.End()
		}
		out.Append(Extent{Offset: at, Length: e.End() - at})
	}
	return out
}

// Widen returns every block of block bytes that has a byte of s, up to size. block is a power of two.
func (s Set) Widen(block, size int64) Set {
	var out Set
	for _, e := range s.extents {
		out.Append(e.Widen(block, size))
	}
	return out
}
