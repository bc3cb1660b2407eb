package repository

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/repository/table"
)

// syntheticDisk describes a disk of which only the tables are stored, and two blocks that all tables name.
type syntheticDisk struct {
	bytes, block int64
	// tables is how many different tables its regions have, in turns.
	tables int
}

// writeSyntheticDisk stores the tables of a disk that has no holes.
func writeSyntheticDisk(tb testing.TB, s *session, want syntheticDisk) Disk {
	tb.Helper()
	g := table.Geometry{Bytes: want.bytes, BlockBytes: want.block}
	blocks := table.NewBlockWriter(s.w, g, "")
	one, other := storedBlock(tb, s, blocks, want.block, 1), storedBlock(tb, s, blocks, want.block, 2)
	tables := make([]object.ID, min(want.tables, g.RegionCount()))
	for k := range tables {
		entries := make([]object.IndirectObjectEntry, RegionBlocks)
		for j := range entries {
			entries[j] = object.IndirectObjectEntry{Start: int64(j) * g.BlockBytes, Length: g.BlockBytes, Object: one}
			if j < 32 && k>>j&1 == 1 {
				entries[j].Object = other
			}
		}
		var err error
		if tables[k], err = table.WriteRegion(s.ctx, s.w, entries); err != nil {
			tb.Fatal(err)
		}
	}
	list := make([]object.IndirectObjectEntry, g.RegionCount())
	for i := range list {
		e := g.Region(i)
		list[i] = object.IndirectObjectEntry{Start: e.Offset, Length: e.Length, Object: tables[i%len(tables)]}
	}
	id, _, err := table.WriteList(s.ctx, s.w, list)
	if err != nil {
		tb.Fatal(err)
	}
	zero, err := blocks.WriteZeroes(s.ctx, g.BlockBytes)
	if err != nil {
		tb.Fatal(err)
	}
	return Disk{Name: "root", Bytes: g.Bytes, BlockBytes: g.BlockBytes, Object: id, Zero: zero, ZeroTail: zero, Digest: "sha256:", Identity: "a", Change: "1"}
}

// storedBlock returns a stored block of this many bytes, which depends on n.
func storedBlock(tb testing.TB, s *session, w *table.BlockWriter, bytes int64, n uint64) object.ID {
	tb.Helper()
	data := make([]byte, bytes)
	binary.LittleEndian.PutUint64(data, n)
	id, err := w.Write(s.ctx, data)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

// publishSynthetic makes a restore point of a synthetic disk.
func publishSynthetic(tb testing.TB, r *Repository, source Source, at time.Time, want syntheticDisk) *RestorePoint {
	tb.Helper()
	q := Request{Source: source, Time: at, Disks: []DiskSource{{Name: "root", Bytes: want.bytes}}}
	q = q.withDefaults()
	s, err := r.newSession(tb.Context(), &q)
	if err != nil {
		tb.Fatal(err)
	}
	disk := writeSyntheticDisk(tb, s, want)
	if err := s.w.Flush(s.ctx); err != nil {
		tb.Fatal(err)
	}
	p := &RestorePoint{ID: s.id, Source: source, Time: at, Disks: []Disk{disk}}
	root, err := s.writeDirectory(p)
	if err != nil {
		tb.Fatal(err)
	}
	if p, err = s.publishPoint(p, root); err != nil {
		tb.Fatal(err)
	}
	if err := s.closeWriter(); err != nil {
		tb.Fatal(err)
	}
	return p
}

// syntheticSource is the source of a machine with this number.
func syntheticSource(n int) Source {
	return Source{Host: "host", User: "varve", Path: fmt.Sprintf("/vm-%d", n)}
}
