package repository

import (
	"context"

	"github.com/varvebackup/varve/internal/repository/verify"
)

// What verification takes and reports: see package verify.
type (
	VerifyOptions = verify.Options
	Report        = verify.Report
	Damage        = verify.Damage
)

// Verify reads what is stored, bypassing all caches, and reports which restore points are damaged, and where. The error says what
// kept it from looking.
func (r *Repository) Verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	return verify.Run(ctx, r.conn.Access, o)
}

// SignOfDamage says whether there is a reason to look for damage with Verify. It reads no tables: it costs a list of the blobs
// and a walk through the index, which is in memory. It relies on garbage collection, which reads all tables and fails if a
// content is in no index. The signs are: the last collection failed, a restore point cannot be read or is lost, or a blob that
// the index names is missing or too short.
func (r *Repository) SignOfDamage(ctx context.Context) (bool, error) {
	return verify.HasSignOfDamage(ctx, r.conn)
}

// Contents counts what Verify reads with the same percentage and sample.
func (r *Repository) Contents(ctx context.Context, percent float64, sample uint64) (contents, bytes int64, err error) {
	return verify.CountContents(ctx, r.conn, percent, sample)
}
