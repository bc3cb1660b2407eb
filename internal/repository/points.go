package repository

import (
	"context"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/image"
)

// List returns the restore points of a source, or of all sources for nil, oldest first. If some are damaged, or have another
// format, the error is errclass.Corrupt or errclass.Invalid, and the others are returned nevertheless. With any other error none
// is returned.
func (r *Repository) List(ctx context.Context, source *Source) ([]*RestorePoint, error) {
	return r.conn.List(ctx, source)
}

// ListSelected is List for the restore points that a filter selects. The index has their labels: it costs no more than List does.
func (r *Repository) ListSelected(ctx context.Context, f Filter) ([]*RestorePoint, error) {
	return r.conn.ListSelected(ctx, &f)
}

// CheckLabels says what is wrong with the group or the labels of a future restore point: errclass.Invalid.
func CheckLabels(group string, labels map[string]string) error {
	return engine.CheckLabels(group, labels)
}

// CheckDefinition says what is wrong with the definition for a future restore point, without the spaces around it:
// errclass.Invalid. The error holds nothing of the text.
func CheckDefinition(definition []byte) error { return engine.CheckDefinition(definition) }

// ListMatching is List for all restore points whose IDs begin with one of the prefixes.
func (r *Repository) ListMatching(ctx context.Context, prefixes ...string) ([]*RestorePoint, error) {
	return r.conn.ListMatching(ctx, prefixes...)
}

// Get returns the restore point with the given ID.
func (r *Repository) Get(ctx context.Context, id string) (*RestorePoint, error) {
	return r.conn.Get(ctx, id)
}

// Lease takes a lease on a restore point. If the restore point is gone, the error is errclass.NotFound. lost is called from
// another goroutine, and at most once, if the lease has ended because it could not be renewed in time: what is being read may
// then be freed. It must not release the lease. A read-only connection cannot take a lease: errclass.Invalid.
func (r *Repository) Lease(ctx context.Context, id string, lost func(error)) (*Lease, error) {
	return r.conn.Lease(ctx, id, lost)
}

// SortByMaking sorts the restore points of a history in the order in which they were made. The order of their times differs if a
// clock was ahead.
func SortByMaking(points []*RestorePoint) { engine.SortByMaking(points) }

// Image opens a disk.
func (r *Repository) Image(ctx context.Context, d Disk) (*Image, error) {
	return image.Open(ctx, r.conn.Reader(), d)
}

// Definition returns the definition of the machine that a restore point has, as it was stored. Without one, the error is
// errclass.NotFound. If it is damaged, or of another restore point, the error is errclass.Corrupt.
func (r *Repository) Definition(ctx context.Context, p *RestorePoint) ([]byte, error) {
	return engine.ReadDefinition(ctx, r.conn.Reader(), p)
}

// Diff returns the blocks in which two disks differ: each of these blocks differs, and the rest is the same. Bytes that only the
// larger disk has count as different. Diff compares the tables, and reads data only where the smaller disk ends within a block.
// Disks with different block sizes are errclass.Invalid, because their tables cannot be compared.
func (r *Repository) Diff(ctx context.Context, a, b Disk) (extent.Set, error) {
	return image.Diff(ctx, r.conn.Reader(), a, b)
}
