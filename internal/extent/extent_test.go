package extent

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// disk is the model: one bool per byte.
type disk [200]bool

func model(s Set) disk {
	var d disk
	for e := range s.All() {
		for i := e.Offset; i < e.End(); i++ {
			d[i] = true
		}
	}
	return d
}

func anExtent() *rapid.Generator[Extent] {
	return rapid.Custom(func(t *rapid.T) Extent {
		at := rapid.Int64Range(0, 199).Draw(t, "offset")
		return Extent{Offset: at, Length: rapid.Int64Range(0, 200-at).Draw(t, "length") % 23}
	})
}

func aSet() *rapid.Generator[Set] {
	return rapid.Custom(func(t *rapid.T) Set { return NewSet(rapid.SliceOfN(anExtent(), 0, 12).Draw(t, "extents")...) })
}

func TestSet_isASetOfBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		given := rapid.SliceOfN(anExtent(), 0, 12).Draw(r, "given")
		a, b, e := NewSet(given...), aSet().Draw(r, "b"), anExtent().Draw(r, "e")
		size := rapid.Int64Range(200, 230).Draw(r, "size")
		var want disk
		for _, g := range given {
			for i := g.Offset; i < g.End(); i++ {
				want[i] = true
			}
		}
		da, db := model(a), model(b)
		if da != want {
			r.Fatalf("%v from %v", a, given)
		}
		union, both, less := model(a.Union(b)), model(a.Intersect(b)), model(a.Subtract(b))
		var within, inside disk
		for x := range a.Within(e) {
			for i := x.Offset; i < x.End(); i++ {
				within[i] = true
			}
		}
		var bytes int64
		all, some := true, false
		for i := range int64(200) {
			if union[i] != (da[i] || db[i]) || both[i] != (da[i] && db[i]) || less[i] != (da[i] && !db[i]) {
				r.Fatalf("byte %d of %v and %v", i, a, b)
			}
			in := i >= e.Offset && i < e.End()
			inside[i] = in && da[i]
			all, some = all && (!in || da[i]), some || inside[i]
			if da[i] {
				bytes++
			}
		}
		if within != inside || a.Contains(e) != all || a.Overlaps(e) != some || a.Bytes() != bytes {
			r.Fatalf("%v within %v", a, e)
		}
		wide := a.Widen(16, size)
		for x := range wide.All() {
			if x.Offset%16 != 0 || (x.End()%16 != 0 && x.End() != size) || !a.Overlaps(x) || x.End() > size {
				r.Fatalf("%v widened to %v in %d", a, wide, size)
			}
		}
		for x := range a.All() {
			if !wide.Contains(x) {
				r.Fatalf("%v is lost in %v", x, wide)
			}
		}
		for _, s := range []Set{a, a.Union(b), a.Intersect(b), a.Subtract(b), wide} {
			canonical(r, s)
		}
	})
}

func canonical(r *rapid.T, s Set) {
	last := int64(-1)
	for e := range s.All() {
		if e.Empty() || !e.Valid() || e.Offset <= last {
			r.Fatalf("%v is not in order", slices.Collect(s.All()))
		}
		last = e.End()
	}
}

func TestExtent_atTheEndOfEverything(t *testing.T) {
	t.Parallel()
	const most = 1<<63 - 1
	for e, want := range map[Extent]bool{{0, most}: true, {most, 0}: true, {1, most}: false, {-1, 1}: false, {0, -1}: false} {
		if e.Valid() != want {
			t.Errorf("%v: %v", e, !want)
		}
	}
	if got, want := (Extent{most - 1, 1}).Widen(1<<20, most), (Extent{most &^ (1<<20 - 1), 1<<20 - 1}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}
