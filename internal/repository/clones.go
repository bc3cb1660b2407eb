package repository

import (
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/internal/repository/verify"
)

// checkClones checks what a disk took over from the restore point parentID. This session did not write it, so nothing else would
// notice that it is gone. The blocks of unchanged regions can be looked up only after their tables were read, with a request each.
// That is done only if one of the blocks may be gone.
func (s *session) checkClones(g table.Geometry, list []object.IndirectObjectEntry, parentID string) error {
	if err := verify.CheckTables(s.ctx, s.w.ContentReader(), list); err != nil {
		return &parentError{err}
	}
	doubt, err := verify.ClonesInDoubt(s.ctx, s.w, parentID)
	if err != nil || !doubt {
		return err
	}
	if err := verify.CheckRegions(s.ctx, s.w.ContentReader(), g, list, s.q.Workers); err != nil {
		return &parentError{err}
	}
	return nil
}
