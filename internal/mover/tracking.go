package mover

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// ownerBytes is how many bytes of a hash identify the owner of a bitmap.
const ownerBytes = 8

// imageTracking manages the bitmaps in the qcow2 images of a backup. Before a backup reads an image, it adds a bitmap
// with a name that was never used before, so that the bitmap has everything written after the restore point. That
// bitmap is the base of the next backup, and the only one that stays. A crash in between leaves a bitmap that no
// restore point names; the next backup removes it.
type imageTracking struct {
	// owner is the beginning of the names of this history's bitmaps. An image may be in several histories and
	// repositories.
	owner string
	// images have the new bitmaps, each with a name of its own. With one name for all, an image that is copied over
	// another one would bring a bitmap that looks like the other's.
	images []Source
	// unusable is an error that names the images whose bitmap cannot be used, or nil.
	unusable error
}

// startImageTracking adds the bitmap of this backup to each image among the sources, and makes the backup read only
// what the bitmap of the last one has.
func startImageTracking(ctx context.Context, r *repository.Repository, history repository.Source, parent string, sources []Source) (*imageTracking, error) {
	points, err := r.List(ctx, &history)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	repository.SortByMaking(points)
	sum := sha256.Sum256([]byte(r.ID() + "\n" + history.String()))
	t := &imageTracking{owner: checkpointPrefix + hex.EncodeToString(sum[:ownerBytes]) + "-"}
	for i := range sources {
		if !sources[i].isImage() {
			continue
		}
		base := baseCheckpoint(points, parent, sources[i].Name)
		if err := t.addBitmap(ctx, &sources[i], base, recordedCheckpoints(points), err == nil); err != nil {
			return nil, err
		}
		t.images = append(t.images, sources[i])
	}
	return t, nil
}

// addBitmap adds the new bitmap to one image, and makes the backup read what the bitmap base has. If all restore points
// are known, it also removes the bitmaps that failed backups have left. recorded are the checkpoints of restore points.
func (t *imageTracking) addBitmap(ctx context.Context, image *Source, base string, recorded map[string]bool, allKnown bool) error {
	bitmaps, err := disk.Bitmaps(ctx, image.Location)
	if err != nil {
		return fmt.Errorf("disk %s: %w", image.Name, err)
	}
	for _, b := range bitmaps {
		switch {
		case b.Name == base && b.Saved && b.Recording:
			image.Options.Bitmap, image.Exclusive = base, true
		case b.Name == base:
			t.unusable = errors.Join(t.unusable, fmt.Errorf("disk %s is read as a whole: its bitmap was not saved when its last user ended, or was disabled", image.Name))
		case allKnown && strings.HasPrefix(b.Name, t.owner) && !recorded[b.Name] && !t.hasAdded(b.Name):
			if err := disk.RemoveBitmap(ctx, image.Location, b.Name); err != nil {
				return &BitmapError{Source: image.Name, Err: err}
			}
		}
	}
	image.Checkpoint = t.owner + randomToken()
	if err := disk.AddBitmap(ctx, image.Location, image.Checkpoint); err != nil {
		return &BitmapError{Source: image.Name, Err: err}
	}
	return nil
}

// hasAdded reports whether this backup has added the bitmap.
func (t *imageTracking) hasAdded(bitmap string) bool {
	return slices.ContainsFunc(t.images, func(s Source) bool { return s.Checkpoint == bitmap })
}

// removeOldBitmaps removes all bitmaps of this history except this backup's. It must be called only once the restore
// point exists.
func (t *imageTracking) removeOldBitmaps(ctx context.Context) (failures error) {
	for _, image := range t.images {
		bitmaps, err := disk.Bitmaps(ctx, image.Location)
		for _, b := range bitmaps {
			if strings.HasPrefix(b.Name, t.owner) && !t.hasAdded(b.Name) {
				err = errors.Join(err, disk.RemoveBitmap(ctx, image.Location, b.Name))
			}
		}
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("disk %s: bitmaps that are not needed any more go with the next backup: %w", image.Name, err))
		}
	}
	return failures
}

// baseCheckpoint returns the checkpoint that a disk's changes are counted from: that of its latest restore point, or of
// the parent that was asked for. It is "" if there is none. points are in the order in which they were made.
func baseCheckpoint(points []*repository.RestorePoint, parent, diskName string) string {
	for _, p := range slices.Backward(points) {
		if parent != repository.ParentAuto && parent != p.ID {
			continue
		}
		if d, err := p.Disk(diskName); err == nil {
			return d.Change
		}
	}
	return ""
}

// recordedCheckpoints returns the checkpoints that restore points name.
func recordedCheckpoints(points []*repository.RestorePoint) map[string]bool {
	out := map[string]bool{}
	for _, p := range points {
		for _, d := range p.Disks {
			out[d.Change] = true
		}
	}
	return out
}
