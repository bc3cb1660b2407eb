package repository

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/manifest"
	"github.com/kopia/kopia/snapshot"
)

// maxPinBytes bounds the name of a pin.
const maxPinBytes = 200

// Pin adds and removes pins of a restore point, and returns it as it is then. Adding one that is there and removing one that is not
// changes nothing. kopia cannot change a manifest, only replace it, so when something changes THE RESTORE POINT GETS ANOTHER ID.
func (r *Repository) Pin(ctx context.Context, id string, add, remove []string) (*RestorePoint, error) {
	for _, pin := range add {
		if err := validPin(pin); err != nil {
			return nil, err
		}
	}
	p, err := r.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	err = repo.WriteSession(ctx, r.rep, repo.WriteSessionOptions{Purpose: "varve pin"}, func(ctx context.Context, w repo.RepositoryWriter) error {
		m, err := snapshot.LoadSnapshot(ctx, w, manifest.ID(id))
		if err != nil {
			return err
		}
		if m.UpdatePins(add, remove) {
			if err := snapshot.UpdateSnapshot(ctx, w, m); err != nil {
				return err
			}
		}
		p.ID, p.Pins = string(m.ID), m.Pins
		reached("pin put")
		return nil
	})
	if err := errors.Join(err, r.rep.Refresh(ctx)); err != nil {
		return nil, fmt.Errorf("pins of restore point %s: %w", id, err)
	}
	reached("pin stored")
	return p, nil
}

// Pinned says whether anything pins the restore point.
func (p *RestorePoint) Pinned() bool { return len(p.Pins) > 0 }

func validPin(pin string) error {
	if pin == "" || len(pin) > maxPinBytes || slices.ContainsFunc([]rune(pin), func(c rune) bool { return c < ' ' }) {
		return fmt.Errorf("%w: a pin called %q: 1 to %d bytes without control characters", ErrInvalid, pin, maxPinBytes)
	}
	return nil
}
