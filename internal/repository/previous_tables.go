package repository

import (
	"context"
	"errors"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/internal/repository/verify"
)

// parentError says that the parent's tables cannot be used.
type parentError struct{ err error }

func (e *parentError) Error() string { return "parent: " + e.err.Error() }
func (e *parentError) Unwrap() error { return e.err }

// previousTables is the disk in the previous restore point. An incremental starts from it. A full backup only looks at it to say
// what changed, and does without what is damaged.
type previousTables struct {
	r        table.ContentReader
	needed   bool
	geometry table.Geometry
	// list holds the regions; it is empty if there is none.
	list []object.IndirectObjectEntry
}

// diagnosedReader reads as a session does. What cannot be read is read again by the connection, which tells damage from a storage that does
// not answer: damage makes a full backup, which does not take the damaged pack for stored, and anything else may pass. It is for what was there
// before the session.
type diagnosedReader struct {
	table.ContentReader

	connection table.ContentReader
	w          *engine.MendingWriter
}

// GetContent implements table.ContentReader.
func (d *diagnosedReader) GetContent(ctx context.Context, id content.ID) ([]byte, error) {
	data, err := d.ContentReader.GetContent(ctx, id)
	if err == nil || ctx.Err() != nil {
		return data, err
	}
	if !table.IsMissing(err) {
		data, err = d.connection.GetContent(ctx, id)
	}
	if table.IsMissing(err) || errors.Is(err, errclass.Corrupt) {
		d.w.Distrust(ctx, id)
	}
	return data, err
}

func (w *diskWriter) loadPreviousTables() (previousTables, error) {
	p := previousTables{r: &diagnosedReader{w.w.ContentReader(), w.r.conn.Reader(), w.w}, needed: w.plan.isIncremental()}
	d := w.plan.previous
	if d == nil {
		return p, nil
	}
	p.geometry = table.Geometry{Bytes: d.Bytes, BlockBytes: d.BlockBytes}
	list, err := table.ReadList(w.ctx, p.r, p.geometry, d.Object)
	if err != nil && p.needed {
		return p, &parentError{err}
	}
	p.list = list
	return p, nil
}

// hasRegion says whether the previous restore point has region i, which is e, in the same length.
func (p *previousTables) hasRegion(i int, e extent.Extent) bool {
	return i < len(p.list) && p.geometry.Region(i) == e
}

// readRegion returns the table of region i; nil if there is none, or if it cannot be read and is not needed.
func (p *previousTables) readRegion(ctx context.Context, i int) ([]object.IndirectObjectEntry, error) {
	if i >= len(p.list) {
		return nil, nil
	}
	entries, err := table.ReadRegion(ctx, p.r, p.geometry, i, p.list[i].Object)
	if err != nil && p.needed {
		return nil, &parentError{err}
	}
	return entries, nil
}

// checkReused checks that the index has these blocks of the previous restore point, and that they are not marked as deleted.
func (p *previousTables) checkReused(ctx context.Context, blocks []object.ID) error {
	if err := verify.CheckContents(ctx, p.r, blocks...); err != nil {
		return &parentError{err}
	}
	return nil
}
