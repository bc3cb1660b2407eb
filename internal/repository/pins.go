package repository

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
)

// maxPinBytes bounds the name of a pin.
const maxPinBytes = 200

// Pin adds and removes pins of a restore point, and returns the restore point as it is then. Adding a pin that exists, or
// removing one that does not, changes nothing.
func (r *Repository) Pin(ctx context.Context, id string, add, remove []string) (*RestorePoint, error) {
	for _, pin := range add {
		if err := validPin(pin); err != nil {
			return nil, err
		}
	}
	if slices.Contains(slices.Concat(add, remove), engine.OwnPin) {
		return nil, fmt.Errorf("%w: the pin %s is Varve's own", errclass.Invalid, engine.OwnPin)
	}
	err := r.conn.Change(ctx, "pin", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		s, err := r.conn.FindPoint(ctx, id)
		if err != nil || !s.Manifest.UpdatePins(add, remove) {
			return err
		}
		// kopia cannot change a manifest, only replace it.
		if _, err := snapshot.SaveSnapshot(ctx, w, s.Manifest); err != nil {
			return err
		}
		if err := s.Remove(ctx, w); err != nil {
			return err
		}
		engine.Reached("pin put")
		if err := w.Flush(ctx); err != nil {
			return err
		}
		engine.Reached("pin stored")
		return engine.PutRecord(ctx, w, id, s.Manifest)
	})
	if err != nil {
		return nil, fmt.Errorf("pins of restore point %s: %w", id, err)
	}
	return r.Get(ctx, id)
}

func validPin(pin string) error {
	if pin == "" || len(pin) > maxPinBytes || !utf8.ValidString(pin) || slices.ContainsFunc([]rune(pin), func(c rune) bool { return c < ' ' }) {
		return fmt.Errorf("%w: a pin called %q: 1 to %d bytes of UTF-8 without control characters", errclass.Invalid, pin, maxPinBytes)
	}
	return nil
}
