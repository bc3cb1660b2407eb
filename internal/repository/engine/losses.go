package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/errclass"
)

// Losses says which contents that the index names are lost: their pack is missing, too short, or known to be damaged. kopia believes
// the index, and would take them for stored. A nil *Losses has none.
type Losses struct {
	// usable is how many bytes of a pack can be relied upon, from its beginning. Packs of which nothing is lost are not in it.
	usable map[blob.ID]int64
	// live are those packs of which the index names a lost content that it does not mark as deleted.
	live map[blob.ID]bool
}

// FindLosses compares the index with a list of the packs. If nothing is lost, that costs one list and a walk through the index, which is
// in memory. The index must have been read before.
//
// A pack that the list does not have, or has shorter, is asked for alone, and the index is read again afterwards: maintenance of
// another machine moves contents and deletes their old pack, but stores the index that names the new place first.
func (c *Connection) FindLosses(ctx context.Context) (*Losses, error) {
	packs, err := ListPacks(ctx, c.Kopia.BlobReader())
	if err != nil {
		return nil, err
	}
	for {
		l, err := c.compareIndex(ctx, packs)
		if err != nil {
			return nil, err
		}
		again := false
		for id := range l.usable {
			if packs.checkedAgain[id] {
				continue
			}
			again = true
			if err := packs.lookAgain(ctx, id); err != nil {
				return nil, err
			}
		}
		if !again {
			return l, nil
		}
		if err := c.Kopia.Refresh(ctx); err != nil {
			return nil, fmt.Errorf("read the indexes again: %w", err)
		}
	}
}

// compareIndex returns what the index names and the list does not have.
func (c *Connection) compareIndex(ctx context.Context, packs *PackList) (*Losses, error) {
	l := &Losses{usable: map[blob.ID]int64{}, live: map[blob.ID]bool{}}
	options := content.IterateOptions{IncludeDeleted: true}
	err := c.Kopia.ContentReader().IterateContents(ctx, options, func(info content.Info) error {
		n := packs.bytes[info.PackBlobID] // 0 if it is missing
		if packs.damaged[info.PackBlobID] {
			n = 0
		}
		if int64(info.PackOffset)+int64(info.PackedLength) > n {
			l.usable[info.PackBlobID] = n
			if !info.Deleted {
				l.live[info.PackBlobID] = true
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("compare the index with the packs: %w", err)
	}
	return l, nil
}

// Any says whether anything is lost that the index does not mark as deleted.
func (l *Losses) Any() bool { return l != nil && len(l.live) > 0 }

// Has says whether a content is lost.
func (l *Losses) Has(info content.Info) bool {
	if l == nil {
		return false
	}
	n, ok := l.usable[info.PackBlobID]
	return ok && int64(info.PackOffset)+int64(info.PackedLength) > n
}

// Packs returns the names of the packs of which something is lost that the index does not mark as deleted, in order.
func (l *Losses) Packs() (out []string) {
	if l == nil {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(l.live)) {
		out = append(out, string(id))
	}
	return out
}

// exceed says whether something is lost that is not among the losses before.
func (l *Losses) exceed(before *Losses) bool {
	if before == nil {
		return l.Any()
	}
	for id := range l.live {
		was, ok := before.usable[id]
		if !ok || l.usable[id] < was {
			return true
		}
	}
	return false
}

// with returns the losses and one more pack, which is damaged.
func (l *Losses) with(id blob.ID) *Losses {
	out := &Losses{usable: map[blob.ID]int64{}, live: map[blob.ID]bool{}}
	if l != nil {
		out.usable, out.live = maps.Clone(l.usable), maps.Clone(l.live)
	}
	out.usable[id], out.live[id] = 0, true
	return out
}

// describedPacks is how many packs an error names.
const describedPacks = 3

// Describe names the packs, for an error.
func (l *Losses) Describe() string {
	names := l.Packs()
	more := ""
	if n := len(names) - describedPacks; n > 0 {
		names, more = names[:describedPacks], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("blob %s%s is missing, too short or damaged", strings.Join(names, ", "), more)
}

// errLost returns an error about a content that is lost.
func errLost(info content.Info) error {
	return fmt.Errorf("%w: content %s: blob %s is missing, too short or damaged", errclass.Corrupt, info.ContentID, info.PackBlobID)
}
