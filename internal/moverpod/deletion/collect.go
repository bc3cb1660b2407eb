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
	// WithMost: most of the backups that were there went missing in the same look, which looks like a copy of a
	// location that is not complete, and not like a deletion.
	WithMost bool `json:"withMost,omitempty"`
	// Read is when the location was last asked whether the backup of this name has this UID. It is asked once a day.
	Read *time.Time `json:"read,omitempty"`
}

// fewMissing is how many backups may go missing in one look even if these are most of them.
const fewMissing = 3

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
	// Agreed is datamove.AnnotationCollectMissing: what went missing with most backups until then was deleted.
	Agreed time.Time
	Now    func() time.Time
	Log    *slog.Logger
}

// Collected is what Collect did: how many restore points it deleted, and why it kept others.
type Collected struct {
	Deleted int
	Kept    map[string]datamove.Kept
	// Doubted is how many backups went missing together with most others, the last ones at DoubtedAt. Their restore
	// points are kept until somebody agrees.
	Doubted   int
	DoubtedAt time.Time
}

// Summary says in one line what was kept; "" if nothing was.
func (c Collected) Summary() string {
	var all []string
	if c.Doubted > 0 {
		all = append(all, fmt.Sprintf("most backups of the location went missing at once, %d in all, and their "+
			"restore points are kept: put the backups back, or, if you have deleted them, set the annotation %s: "+
			"%q on the BackupRepository",
			c.Doubted, datamove.AnnotationCollectMissing, c.DoubtedAt.Format(time.RFC3339)))
	}
	if kept := c.keptSummary(); kept != "" {
		all = append(all, kept)
	}
	return strings.Join(all, "; ")
}

func (c Collected) keptSummary() string {
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
	reused, err := c.findReused(ctx, before, groups, there)
	if err != nil {
		return Collected{}, err
	}
	after := compareSightings(before, groups, there, reused, c.Now())
	if err := c.write(ctx, before, after); err != nil {
		return Collected{}, err
	}
	gone, doubted, at := c.judgeMissing(after)
	done, err := c.deleteGroups(ctx, groups, gone)
	done.Doubted, done.DoubtedAt = doubted, at
	return done, err
}

// findReused says for each backup that was asked about whether its name is another backup's now. Who is missing for
// long is asked about in each look, and others once a day.
func (c *Collector) findReused(
	ctx context.Context, before memory, groups map[string][]*repository.RestorePoint, there map[string]bool,
) (map[string]bool, error) {
	reused := map[string]bool{}
	for key := range groups {
		name, uid, _ := strings.Cut(key, "/")
		s := before.Backups[key]
		recent := s.Read != nil && c.Now().Sub(*s.Read).Abs() < Grace
		if !there[name] || s.Missing == nil && recent {
			continue
		}
		other, err := c.Backups.HasOther(ctx, name, uid)
		if err != nil {
			return nil, err
		}
		reused[key] = other
	}
	return reused, nil
}

// judgeMissing returns the keys of the backups that are gone for long, without those of which nobody has agreed that
// they were deleted: how many these are, and when the last ones went missing.
func (c *Collector) judgeMissing(m memory) (gone []string, doubted int, at time.Time) {
	for key, s := range m.Backups {
		switch {
		case s.Missing == nil:
		case s.WithMost && s.Missing.After(c.Agreed):
			doubted++
			if s.Missing.After(at) {
				at = *s.Missing
			}
		case c.Now().Sub(*s.Missing) >= Grace:
			gone = append(gone, key)
		}
	}
	slices.Sort(gone)
	return gone, doubted, at
}

// compareSightings compares what is there with what was seen before, and returns what to remember.
//
// A location without any backup looks like one whose prefix was changed or whose repositories alone were copied.
// Nothing is missing there. Of one whose backups are copied later than its repositories, most go missing at once.
//
// A backup whose name belongs to another backup by now counts as missing, however many others are missing.
func compareSightings(
	before memory, groups map[string][]*repository.RestorePoint, there, reused map[string]bool, now time.Time,
) memory {
	after := memory{Backups: map[string]sighting{}}
	at := now.UTC().Truncate(time.Second)
	var missed []string
	wereThere := 0
	for key := range groups {
		name, _, _ := strings.Cut(key, "/")
		s, seen := before.Backups[key]
		other, asked := reused[key]
		if seen && s.Missing == nil && !other {
			wereThere++
		}
		switch {
		case there[name] && !other:
			after.Backups[key] = sighting{Read: s.Read}
			if asked {
				after.Backups[key] = sighting{Read: &at}
			}
		case !seen:
		case len(there) == 0 || s.Missing != nil:
			after.Backups[key] = s
		case other:
			after.Backups[key] = sighting{Missing: &at}
		default:
			missed = append(missed, key)
		}
	}
	for _, key := range missed {
		after.Backups[key] = sighting{Missing: &at, WithMost: len(missed) > fewMissing && 2*len(missed) > wereThere}
	}
	return after
}

// deleteGroups deletes the restore points of backups that are gone, once the location has said so again.
func (c *Collector) deleteGroups(ctx context.Context, groups map[string][]*repository.RestorePoint, gone []string) (Collected, error) {
	done := Collected{Kept: map[string]datamove.Kept{}}
	guarded, err := newGuard(ctx, c.Repository, c.Now())
	if err != nil {
		return done, err
	}
	for _, key := range gone {
		name, uid, _ := strings.Cut(key, "/")
		there, err := hasBackup(ctx, c.Backups, name, uid)
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
