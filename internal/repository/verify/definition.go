package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
)

// checkDefinition says whether the definition of the machine that a restore point has, if any, cannot be read.
func (v *tableCheck) checkDefinition(ctx context.Context, p *engine.RestorePoint) ([]Damage, error) {
	if p.Definition == nil {
		return nil, nil
	}
	_, err := engine.ReadDefinition(ctx, v.r, p)
	if errors.Is(err, errclass.Corrupt) {
		// A content that is damaged explains it. If none is, maintenance may have moved one at that moment.
		if explained := v.explainDefinition(ctx, p); explained != nil {
			err = explained
		} else {
			_, err = engine.ReadDefinition(ctx, v.r, p)
		}
	}
	switch {
	case err == nil:
		return nil, nil
	case !errors.Is(err, errclass.Corrupt):
		return nil, err
	}
	damage := &damageError{text: fmt.Sprintf("the definition of the machine: %s", err), err: err}
	return []Damage{{Disk: engine.DefinitionEntry, Err: damage}}, nil
}

// explainDefinition says what is wrong with the first damaged content of a definition that could not be read.
func (v *tableCheck) explainDefinition(ctx context.Context, p *engine.RestorePoint) error {
	return table.EachContent(ctx, v.r, p.Definition.Object, func(id content.ID) error {
		_, read := v.r.GetContent(ctx, id)
		return v.checkContent(ctx, id, read)
	})
}
