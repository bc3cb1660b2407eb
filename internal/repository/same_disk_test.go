package repository

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
)

// namedDisk is a disk of a backup, with what its bitmap holds.
type namedDisk struct {
	name  string
	disk  *bitmapDisk
	block int64
	dirty extent.Set
}

func namedRequest(since, change string, at int64, disks ...namedDisk) Request {
	q := Request{Source: testSource, Time: time.Unix(at, 0)}
	for _, d := range disks {
		source := DiskSource{Name: d.name, Bytes: int64(len(d.disk.data)), Reader: d.disk, Identity: "nbd://" + d.name, Change: change}
		if since != "" {
			source.Changes = &Changes{Since: since, Set: d.dirty}
		}
		q.Disks, q.BlockBytes = append(q.Disks, source), d.block
	}
	return q
}

// A checkpoint has one name in all images of a machine, and an NBD export does not tell which image it belongs to.
func TestBase_disksThatChangePlaces(t *testing.T) {
	t.Parallel()
	const size = 64 * mib
	blank := func() *bitmapDisk { return &bitmapDisk{data: make([]byte, size)} }
	full := newBitmapDisk(size)
	for name, c := range map[string]struct {
		a, b   func() *bitmapDisk
		dirty  extent.Set
		blockB int64
		apart  bool // one restore point each
		alone  bool // only a is backed up, before and after
		want   FullReason
	}{
		"other content":          {a: func() *bitmapDisk { return newBitmapDisk(size) }, b: blank, want: FullOtherContent},
		"no data":                {a: blank, b: func() *bitmapDisk { return newBitmapDisk(size) }, want: FullOtherContent},
		"one block":              {a: blank, b: func() *bitmapDisk { return oneBlock(full, 40) }, want: FullOtherContent},
		"one block of many":      {a: func() *bitmapDisk { return copyOf(full) }, b: func() *bitmapDisk { return oneBlock(full, 40) }, want: FullOtherContent},
		"blocks of another size": {a: func() *bitmapDisk { return copyOf(full) }, b: func() *bitmapDisk { return oneBlock(full, 40) }, blockB: 4 * mib, want: FullOtherContent},
		"a restore point each":   {a: func() *bitmapDisk { return copyOf(full) }, b: func() *bitmapDisk { return oneBlock(full, 40) }, apart: true, want: FullOtherContent},
		"a smaller disk":         {a: func() *bitmapDisk { return copyOf(full) }, b: func() *bitmapDisk { return &bitmapDisk{data: slices.Clone(full.data[:size/2+512])} }},
		"a smaller disk, then zeroes": {a: func() *bitmapDisk { return holeIn(full, size/2-mib, size-mib) }, b: func() *bitmapDisk {
			return &bitmapDisk{data: slices.Clone(holeIn(full, size/2-mib, size-mib).data[:size/2+512])}
		}},
		"a changed block":                       {a: func() *bitmapDisk { return copyOf(full) }, b: func() *bitmapDisk { return oneBlock(full, 40) }, dirty: extent.NewSet(extent.Extent{Offset: 40 * mib, Length: 512})},
		"the same":                              {a: func() *bitmapDisk { return copyOf(full) }, b: func() *bitmapDisk { return copyOf(full) }},
		"one that nobody knows of":              {a: func() *bitmapDisk { return newBitmapDisk(size) }, b: blank, alone: true, want: FullOtherContent},
		"one that nobody knows of, for no data": {a: blank, b: func() *bitmapDisk { return newBitmapDisk(size) }, alone: true, want: FullOtherContent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := newRepository(t)
			if c.blockB == 0 {
				c.blockB = mib
			}
			a, b := namedDisk{"a", c.a(), mib, c.dirty}, namedDisk{"b", c.b(), c.blockB, c.dirty}
			switch {
			case c.alone:
				mustBackUp(t, r, namedRequest("", "c1", 1, a))
			case c.apart || c.blockB != mib:
				mustBackUp(t, r, namedRequest("", "c1", 1, b))
				mustBackUp(t, r, namedRequest("", "c1", 2, a))
			default:
				mustBackUp(t, r, namedRequest("", "c1", 2, a, b))
			}
			// In its own place, a is incremental, whatever the others hold.
			p := mustBackUp(t, r, namedRequest("c1", "", 2, a))
			if p.Disks[0].FullReason != "" || p.Disks[0].Stats.ReadBytes > c.dirty.Widen(mib, size).Bytes() {
				t.Errorf("the disk itself is full (%q), and %d bytes were read", p.Disks[0].FullReason, p.Disks[0].Stats.ReadBytes)
			}
			if err := r.Delete(t.Context(), p.ID); err != nil {
				t.Fatal(err)
			}
			a.disk = b.disk
			p = mustBackUp(t, r, namedRequest("c1", "c2", 3, a))
			if p.Disks[0].FullReason != c.want {
				t.Errorf("full: %q, want %q", p.Disks[0].FullReason, c.want)
			}
			same(t, r, p, b.disk.data)
			for i := range int64(3) { // Backups then go on from there.
				p = mustBackUp(t, r, namedRequest(fmt.Sprint("c", i+2), fmt.Sprint("c", i+3), 4+i, namedDisk{"a", b.disk, mib, extent.Set{}}))
				if p.Disks[0].FullReason != "" {
					t.Errorf("full: %q, want an incremental", p.Disks[0].FullReason)
				}
			}
		})
	}
}

// Nothing extra is read if the caller knows that a name belongs to one disk alone.
func TestBase_anExclusiveNameIsBelieved(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	d := newBitmapDisk(4 * mib)
	mustBackUp(t, r, d.request("", "c1", 1))
	before := d.reads.Load()
	q := d.request("c1", "c2", 2)
	q.Disks[0].Changes = &Changes{Since: "c1", Exclusive: true}
	p := mustBackUp(t, r, q)
	if n := d.reads.Load() - before; n > 0 || p.Disks[0].FullReason != "" {
		t.Errorf("the disk was read %d times (full: %q)", n, p.Disks[0].FullReason)
	}
}

func copyOf(d *bitmapDisk) *bitmapDisk { return &bitmapDisk{data: slices.Clone(d.data)} }

// holeIn returns a disk that has zeroes in [from, to).
func holeIn(d *bitmapDisk, from, to int) *bitmapDisk {
	out := copyOf(d)
	clear(out.data[from:to])
	return out
}

// oneBlock returns a disk that differs in one block.
func oneBlock(d *bitmapDisk, block int64) *bitmapDisk {
	out := copyOf(d)
	for i := block * mib; i < (block+1)*mib; i++ {
		out.data[i] ^= 1
	}
	return out
}
