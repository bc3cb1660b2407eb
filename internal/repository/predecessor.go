package repository

import (
	"context"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/extent"
)

// parentError says that the parent's tables cannot be used.
type parentError struct{ err error }

func (e *parentError) Error() string { return "parent: " + e.err.Error() }
func (e *parentError) Unwrap() error { return e.err }

// predecessor is the disk in the previous restore point. An incremental starts from it. A full backup only looks at it to say
// what changed, and does without what is damaged.
type predecessor struct {
	r        contentReader
	needed   bool
	geometry geometry
	// list holds the regions; it is empty if there is no predecessor.
	list []object.IndirectObjectEntry
}

func (w *diskWriter) loadPredecessor() (predecessor, error) {
	p := predecessor{r: w.w.ContentReader(), needed: w.plan.incremental()}
	d := w.plan.previous
	if d == nil {
		return p, nil
	}
	p.geometry = geometry{size: d.Bytes, block: d.BlockBytes}
	list, err := readRegions(w.ctx, p.r, p.geometry, d.Object)
	if err != nil && p.needed {
		return p, &parentError{err}
	}
	p.list = list
	return p, nil
}

// has says whether the predecessor has region i, which is e, in the same length.
func (p *predecessor) has(i int, e extent.Extent) bool {
	return i < len(p.list) && p.geometry.region(i) == e
}

// blocks returns the table of region i; nil if there is none, or if it cannot be read and is not needed.
func (p *predecessor) blocks(ctx context.Context, i int) ([]object.IndirectObjectEntry, error) {
	if i >= len(p.list) {
		return nil, nil
	}
	entries, err := readBlocks(ctx, p.r, p.geometry, i, p.list[i].Object)
	if err != nil && p.needed {
		return nil, &parentError{err}
	}
	return entries, nil
}

// keptAlive checks that the index has these blocks of the predecessor, and that they are not marked as deleted.
func (p *predecessor) keptAlive(ctx context.Context, blocks []object.ID) error {
	if err := contentsAlive(ctx, p.r, blocks...); err != nil {
		return &parentError{err}
	}
	return nil
}
