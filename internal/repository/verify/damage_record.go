package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/table"
)

// damageRecord is the content of a blob with the name storage.DamagedPrefix and that of a pack. Its existence is what counts.
type damageRecord struct {
	Version int `json:"version"`
	// Found is when the damage was found last, and By by whom.
	Found time.Time `json:"found"`
	By    string    `json:"by"`
	// Contents are the damaged contents in the pack.
	Contents []string `json:"contents"`
}

// noteRotten notes that a content has other bytes than were written.
func (v *tableCheck) noteRotten(info content.Info, verdict error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.verdicts[info.ContentID] = verdict
	if found := v.rotten[info.PackBlobID]; !slices.Contains(found, info.ContentID) {
		v.rotten[info.PackBlobID] = append(found, info.ContentID)
	}
}

// noteTable notes which contents of a table have other bytes than were written. The table could not be read.
func (v *tableCheck) noteTable(ctx context.Context, id object.ID) error {
	inner, ok := id.IndexObjectID()
	if !ok {
		return nil
	}
	return v.noteObject(ctx, inner)
}

// noteObject notes which contents of an object have other bytes than were written. The object could not be read.
func (v *tableCheck) noteObject(ctx context.Context, id object.ID) error {
	err := table.EachContent(ctx, v.r, id, func(cid content.ID) error {
		_, read := v.r.GetContent(ctx, cid)
		if read == nil {
			return nil
		}
		if err := v.checkContent(ctx, cid, read); !errors.Is(err, errclass.Corrupt) {
			return err
		}
		return nil
	})
	if errors.Is(err, errclass.Corrupt) {
		return nil // What its tables would have listed is unknown.
	}
	return err
}

// RecordDamage stores which packs have other bytes than were written, so that no later backup takes for stored what is in them. The
// contents were read from the storage, without a cache, at least twice. A verdict that was wrong nevertheless costs that these
// contents are stored once more.
func (i *Inspection) RecordDamage(ctx context.Context, r *Report) error {
	if len(r.rotten) == 0 {
		return nil
	}
	client := i.Kopia.ClientOptions()
	if client.ReadOnly {
		return fmt.Errorf("%w: the connection is read-only", errclass.Invalid)
	}
	var all []error
	for _, pack := range slices.Sorted(maps.Keys(r.rotten)) {
		record := damageRecord{Version: 1, Found: i.Kopia.Time().UTC(), By: client.UsernameAtHost()}
		for _, id := range r.rotten[pack] {
			record.Contents = append(record.Contents, id.String())
		}
		slices.Sort(record.Contents)
		data, err := json.Marshal(record)
		if err == nil {
			err = i.Storage.PutBlob(ctx, storage.DamagedPrefix+pack, storage.Bytes(data), blob.PutOptions{})
		}
		if err != nil {
			all = append(all, fmt.Errorf("record that blob %s is damaged: %w", pack, err))
		}
	}
	return errors.Join(all...)
}
