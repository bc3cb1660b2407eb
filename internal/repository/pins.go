package repository

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"
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
	if slices.Contains(slices.Concat(add, remove), kopiaPin) {
		return nil, fmt.Errorf("%w: the pin %s is Varve's own", ErrInvalid, kopiaPin)
	}
	err := r.change(ctx, "pin", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		s, err := r.stored(ctx, id)
		if err != nil || !s.manifest.UpdatePins(add, remove) {
			return err
		}
		// kopia cannot change a manifest, only replace it.
		if _, err := snapshot.SaveSnapshot(ctx, w, s.manifest); err != nil {
			return err
		}
		if err := s.remove(ctx, w); err != nil {
			return err
		}
		reached("pin put")
		if err := w.Flush(ctx); err != nil {
			return err
		}
		reached("pin stored")
		return putRecord(ctx, w, id, s.manifest)
	})
	if err != nil {
		return nil, fmt.Errorf("pins of restore point %s: %w", id, err)
	}
	return r.Get(ctx, id)
}

// usersPins returns the pins of a manifest that are a user's.
func usersPins(pins []string) (out []string) {
	for _, pin := range pins {
		if pin != kopiaPin {
			out = append(out, pin)
		}
	}
	return out
}

// Pinned says whether anything pins the restore point.
func (p *RestorePoint) Pinned() bool { return len(p.Pins) > 0 }

func validPin(pin string) error {
	if pin == "" || len(pin) > maxPinBytes || !utf8.ValidString(pin) || slices.ContainsFunc([]rune(pin), func(c rune) bool { return c < ' ' }) {
		return fmt.Errorf("%w: a pin called %q: 1 to %d bytes of UTF-8 without control characters", ErrInvalid, pin, maxPinBytes)
	}
	return nil
}
