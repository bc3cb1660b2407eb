package cli

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

// imageTracking is what --track does to the qcow2 images of a backup. Before a backup reads an image, it adds a bitmap
// with a name that was never used before, so that the bitmap has everything written after the restore point. That
// bitmap is the base of the next backup, and the only one that stays. A crash in between leaves a bitmap that no
// restore point names; the next backup removes it.
type imageTracking struct {
	// owner is the beginning of the names of this history's bitmaps. An image may be in several histories and
	// repositories.
	owner string
	// images have the new bitmaps, each with a name of its own. With one name for all, an image that is copied over
	// another one would bring a bitmap that looks like the other's.
	images []diskSpec
	// doubts say which bitmaps cannot be used.
	doubts error
}

// startTracking adds the bitmap of this backup to each image of specs, and makes the backup read only what the bitmap
// of the last one has.
func startTracking(ctx context.Context, r *repository.Repository, q *repository.Request, specs []diskSpec) (*imageTracking, error) {
	points, err := r.List(ctx, &q.Source)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	repository.SortByMaking(points)
	sum := sha256.Sum256([]byte(r.ID() + "\n" + q.Source.String()))
	t := &imageTracking{owner: checkpointPrefix + hex.EncodeToString(sum[:ownerBytes]) + "-"}
	for i := range specs {
		if !specs[i].isImage() {
			continue
		}
		base := baseCheckpoint(points, q.Parent, specs[i].name)
		if err := t.start(ctx, &specs[i], base, named(points), err == nil); err != nil {
			return nil, fmt.Errorf("disk %s: %w", specs[i].name, err)
		}
		t.images = append(t.images, specs[i])
	}
	return t, nil
}

// start adds the new bitmap to one image. If all restore points are known, it also removes the bitmaps that failed
// backups have left.
func (t *imageTracking) start(ctx context.Context, spec *diskSpec, base string, inUse map[string]bool, allKnown bool) error {
	bitmaps, err := disk.Bitmaps(ctx, spec.where)
	if err != nil {
		return err
	}
	for _, b := range bitmaps {
		switch {
		case b.Name == base && b.Saved && b.Recording:
			spec.options.Bitmap, spec.tracked = base, true
		case b.Name == base:
			t.doubts = errors.Join(t.doubts, fmt.Errorf("disk %s is read as a whole: its bitmap was not saved when its last user ended, or was disabled", spec.name))
		case allKnown && strings.HasPrefix(b.Name, t.owner) && !inUse[b.Name] && !t.added(b.Name):
			if err := disk.RemoveBitmap(ctx, spec.where, b.Name); err != nil {
				return imageInUse(err)
			}
		}
	}
	spec.checkpoint = t.owner + randomToken()
	return imageInUse(disk.AddBitmap(ctx, spec.where, spec.checkpoint))
}

// added reports whether this backup has added the bitmap.
func (t *imageTracking) added(bitmap string) bool {
	return slices.ContainsFunc(t.images, func(d diskSpec) bool { return d.checkpoint == bitmap })
}

// removeOthers removes all bitmaps of this history except this backup's. It must be called only once the restore point
// exists.
func (t *imageTracking) removeOthers(ctx context.Context) (failures error) {
	for _, spec := range t.images {
		bitmaps, err := disk.Bitmaps(ctx, spec.where)
		for _, b := range bitmaps {
			if strings.HasPrefix(b.Name, t.owner) && !t.added(b.Name) {
				err = errors.Join(err, disk.RemoveBitmap(ctx, spec.where, b.Name))
			}
		}
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("disk %s: bitmaps that are not needed any more go with the next backup: %w", spec.name, err))
		}
	}
	return failures
}

func imageInUse(err error) error {
	if err == nil {
		return nil
	}
	return &failure{err: err, code: errclass.ExitRefused, hint: "--track needs an image that no guest has open; back up a running guest through an NBD export, with --bitmap and --checkpoint"}
}

// baseCheckpoint returns the checkpoint that a disk's changes are counted from: that of its latest restore point, or of
// the parent that was asked for. It is "" if there is none.
func baseCheckpoint(points []*repository.RestorePoint, parent, name string) string {
	for _, p := range slices.Backward(points) {
		if parent != repository.ParentAuto && parent != p.ID {
			continue
		}
		if d, err := p.Disk(name); err == nil {
			return d.Change
		}
	}
	return ""
}

// named returns the checkpoints of the restore points.
func named(points []*repository.RestorePoint) map[string]bool {
	out := map[string]bool{}
	for _, p := range points {
		for _, d := range p.Disks {
			out[d.Change] = true
		}
	}
	return out
}

// warnOf reports failures that do not fail the command.
func (s *session) warnOf(failures error) {
	if failures != nil {
		s.warn(failures)
	}
}
