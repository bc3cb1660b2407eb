package deletion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// Grace is how long a backup must have been missing in each look at the location until its restore points are deleted.
const Grace = 24 * time.Hour

// sightings is the blob that has what earlier looks have seen. It is beside the repository's own, and not encrypted: the names of backups
// stand in the location anyway.
const sightings blob.ID = "varve.backups"

const sightingsVersion = 1

// sighting is what is known of a backup that was seen in the location.
type sighting struct {
	// Missing is since when it is not there; nil while it is.
	Missing *time.Time `json:"missing,omitempty"`
}

// memory is the blob sightings. A backup that was never seen is not in it: nobody can miss it. Its upload may not have ended, or this is not
// the place where its backup is.
type memory struct {
	Version int `json:"version"`
	// Backups are by name and UID: "monday/8f1c…".
	Backups map[string]sighting `json:"backups"`
}

// Collector deletes the restore points whose Velero backup is gone from the location.
type Collector struct {
	Repository *repository.Repository
	Backups    *repositoryaccess.Backups
	// Storage is the repository's.
	Storage blob.Storage
	Now     func() time.Time
	Log     *slog.Logger
}

// Collected is what Collect did: how many restore points it deleted, and why it kept others.
type Collected struct {
	Deleted int
	Kept    map[string]datamove.Kept
}

// Summary says in one line what was kept; "" if nothing was.
func (c Collected) Summary() string {
	if len(c.Kept) == 0 {
		return ""
	}
	const shown = 5
	var parts []string
	for id, k := range c.Kept {
		text := id + " (" + strings.ToLower(string(k.Why))
		if k.Until != nil {
			text += " until " + k.Until.Format(time.RFC3339)
		}
		parts = append(parts, text+")")
	}
	slices.Sort(parts)
	more := ""
	if len(parts) > shown {
		more = fmt.Sprintf(", and %d more", len(parts)-shown)
		parts = parts[:shown]
	}
	return "restore points of deleted backups are kept: " + strings.Join(parts, ", ") + more
}

// Collect takes one look. It deletes what was missing for Grace, and notes what is missing. An error means that nothing, or not everything,
// was deleted; the next look goes on.
func (c *Collector) Collect(ctx context.Context) (Collected, error) {
	points, err := c.Repository.List(ctx, nil)
	if err != nil {
		return Collected{}, err
	}
	groups := map[string][]*repository.RestorePoint{}
	for _, p := range points {
		if p.Labels[datamove.LabelUploadName] != "" && p.Labels[datamove.LabelBackupName] != "" {
			key := p.Labels[datamove.LabelBackupName] + "/" + p.Labels[datamove.LabelBackupUID]
			groups[key] = append(groups[key], p)
		}
	}
	if len(groups) == 0 {
		return Collected{}, nil
	}
	there, err := c.Backups.Labels(ctx)
	if err != nil {
		return Collected{}, err
	}
	before, err := c.read(ctx)
	if err != nil {
		return Collected{}, err
	}
	after, gone := look(before, groups, there, c.Now())
	if err := c.write(ctx, before, after); err != nil {
		return Collected{}, err
	}
	return c.deleteGroups(ctx, groups, gone)
}

// look compares what is there with what was seen before. It returns what to remember, and the keys of the backups that are gone for long.
//
// A location without any backup looks like one whose prefix was changed or whose repositories alone were copied. Nothing is missing there.
func look(before memory, groups map[string][]*repository.RestorePoint, there map[string]bool, now time.Time) (after memory, gone []string) {
	after.Backups = map[string]sighting{}
	for key := range groups {
		name, _, _ := strings.Cut(key, "/")
		s, seen := before.Backups[key]
		switch {
		case there[name]:
			after.Backups[key] = sighting{}
		case !seen:
		case len(there) == 0:
			after.Backups[key] = s
		case s.Missing == nil:
			at := now.UTC().Truncate(time.Second)
			after.Backups[key] = sighting{Missing: &at}
		default:
			after.Backups[key] = s
			if now.Sub(*s.Missing) >= Grace {
				gone = append(gone, key)
			}
		}
	}
	slices.Sort(gone)
	return after, gone
}

// deleteGroups deletes the restore points of backups that are gone, once the location has said so again.
func (c *Collector) deleteGroups(ctx context.Context, groups map[string][]*repository.RestorePoint, gone []string) (Collected, error) {
	done := Collected{Kept: map[string]datamove.Kept{}}
	guarded, err := newGuard(ctx, c.Repository, c.Now())
	if err != nil {
		return done, err
	}
	for _, key := range gone {
		name, _, _ := strings.Cut(key, "/")
		there, err := c.Backups.Has(ctx, name)
		if err != nil {
			return done, err
		}
		if there {
			c.Log.Warn("a backup that was not listed is there: nothing of it is deleted", "backup", name)
			continue
		}
		var ids []string
		for _, p := range groups[key] {
			if kept := guarded.keeps(p); kept != nil {
				done.Kept[p.ID] = *kept
			} else {
				ids = append(ids, p.ID)
			}
		}
		pinned, err := remove(ctx, c.Repository, ids)
		for _, id := range pinned {
			done.Kept[id] = datamove.Kept{Why: datamove.KeptPinned}
		}
		if err != nil {
			return done, err
		}
		done.Deleted += len(ids) - len(pinned)
		c.Log.Info("restore points of a backup that is gone from the location are deleted", "backup", key, "restorePoints", len(ids)-len(pinned))
	}
	return done, nil
}

// read returns what earlier looks have seen.
func (c *Collector) read(ctx context.Context) (memory, error) {
	text, err := storage.ReadBlob(ctx, c.Storage, sightings)
	if err != nil || text == nil {
		return memory{}, err
	}
	var m memory
	if err := json.Unmarshal(text, &m); err != nil {
		c.Log.Warn("what was seen of backups cannot be read: it is noted again", "blob", sightings, "error", err.Error())
		return memory{}, nil
	}
	if m.Version != sightingsVersion {
		return memory{}, fmt.Errorf("blob %s: version %d, want %d", sightings, m.Version, sightingsVersion)
	}
	return m, nil
}

// write remembers what was seen, if it has changed. It is stored before anything is deleted.
func (c *Collector) write(ctx context.Context, before, after memory) error {
	before.Version, after.Version = sightingsVersion, sightingsVersion
	was, errBefore := json.Marshal(before)
	is, errAfter := json.Marshal(after)
	if err := errors.Join(errBefore, errAfter); err != nil {
		return err
	}
	if string(was) == string(is) {
		return nil
	}
	if err := c.Storage.PutBlob(ctx, sightings, storage.Bytes(is), blob.PutOptions{}); err != nil {
		return fmt.Errorf("write blob %s: %w", sightings, err)
	}
	return nil
}
