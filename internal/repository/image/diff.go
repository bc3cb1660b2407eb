package image

import (
	"context"
	"fmt"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// Diff returns the blocks in which two disks differ: each of these blocks differs, and the rest is the same. Bytes that only
// the larger disk has count as different. It compares the tables, and reads data only where the smaller disk ends within a block.
// Disks with different block sizes are errclass.Invalid, because their tables cannot be compared.
func Diff(ctx context.Context, r *engine.ContentReader, a, b engine.Disk) (extent.Set, error) {
	if a.BlockBytes != b.BlockBytes {
		return extent.Set{}, fmt.Errorf("%w: disk %s has blocks of %d bytes and disk %s of %d: only disks with the same block size can be compared",
			errclass.Invalid, a.Name, a.BlockBytes, b.Name, b.BlockBytes)
	}
	if a.Bytes > b.Bytes {
		a, b = b, a
	}
	var out extent.Set
	if a.Object == b.Object && a.Bytes == b.Bytes {
		return out, nil
	}
	small, err := Open(ctx, r, a)
	if err != nil {
		return out, err
	}
	large, err := Open(ctx, r, b)
	if err != nil {
		return out, err
	}
	for i := range small.List {
		if err := diffRegion(ctx, small, large, i, &out); err != nil {
			return extent.Set{}, err
		}
	}
	out.Append(extent.Extent{Offset: a.Bytes, Length: b.Bytes - a.Bytes})
	return out, nil
}

// diffRegion appends the blocks of region i that differ, up to the end of the smaller disk.
func diffRegion(ctx context.Context, small, large *Image, i int, out *extent.Set) error {
	if small.List[i].Object == large.List[i].Object && small.List[i].Length == large.List[i].Length {
		return nil
	}
	mine, err := small.ReadRegion(ctx, i)
	if err != nil {
		return err
	}
	other, err := large.ReadRegion(ctx, i)
	if err != nil {
		return err
	}
	for j := range mine {
		same, err := isSameBlock(ctx, small, large, mine[j], other[j])
		if err != nil {
			return err
		}
		if !same {
			out.Append(small.Geometry.Block(i, j))
		}
	}
	return nil
}

// isSameBlock says whether two blocks at the same place hold the same data, up to the length of the shorter one. Only the last
// block of the smaller disk can be shorter. It alone may have to be read, because the IDs of blocks of different lengths cannot
// be compared.
func isSameBlock(ctx context.Context, small, large *Image, mine, other object.IndirectObjectEntry) (bool, error) {
	if mine.Length == other.Length {
		return mine.Object == other.Object, nil
	}
	data := func(m *Image, e object.IndirectObjectEntry) ([]byte, error) {
		if m.IsHole(e) {
			return make([]byte, e.Length), nil
		}
		return table.ReadBlock(ctx, m.reader, e.Object, e.Length)
	}
	a, err := data(small, mine)
	if err != nil {
		return false, fmt.Errorf("disk %s: %w", small.Disk.Name, err)
	}
	b, err := data(large, other)
	if err != nil {
		return false, fmt.Errorf("disk %s: %w", large.Disk.Name, err)
	}
	return string(a) == string(b[:len(a)]), nil
}
