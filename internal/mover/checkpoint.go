package mover

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/repository"
)

// checkpointPrefix is the beginning of every checkpoint name.
const checkpointPrefix = "varve-"

// checkpointName is the form of names that nobody uses twice: 128 random bits. Where Varve itself manages the bitmaps of
// an image, a hash of their owner precedes the bits.
var checkpointName = regexp.MustCompile(`^` + checkpointPrefix + `([0-9a-f]{16}-)?[0-9a-f]{32}$`)

// NewCheckpoint returns a name for a checkpoint that was never used before.
func NewCheckpoint() string { return checkpointPrefix + randomToken() }

// IsCheckpoint reports whether a name has the form of those that NewCheckpoint returns. Other names could be used twice, and
// a backup could then start from the wrong restore point.
func IsCheckpoint(name string) bool { return checkpointName.MatchString(name) }

func randomToken() string {
	var token [16]byte
	_, _ = rand.Read(token[:]) // it never fails
	return hex.EncodeToString(token[:])
}

// checkCheckpoint checks that the bitmap of this backup's checkpoint is in the image. A bitmap that is added later lacks
// what is written until then. It cannot check an NBD server: libvirt does not export the new bitmap.
func (s *Source) checkCheckpoint(ctx context.Context) error {
	if !s.isImage() || s.Checkpoint == "" {
		return nil
	}
	bitmaps, err := disk.Bitmaps(ctx, s.Location)
	if err != nil {
		return fmt.Errorf("disk %s: %w", s.Name, err)
	}
	if !slices.ContainsFunc(bitmaps, func(b disk.Bitmap) bool { return b.Name == s.Checkpoint }) {
		return &MissingBitmapError{Source: s.Name, Location: s.Location, Checkpoint: s.Checkpoint}
	}
	return nil
}

// LatestCheckpoints returns the different checkpoints that the latest restore point of a history recorded, for the disk
// with this name, or for all disks if the name is "". A disk without a checkpoint counts as "". points is the
// history.
func LatestCheckpoints(points []*repository.RestorePoint, diskName string) (checkpoints []string) {
	points = slices.Clone(points)
	repository.SortByMaking(points)
	for _, p := range slices.Backward(points) {
		for _, d := range p.Disks {
			if (diskName == "" || d.Name == diskName) && !slices.Contains(checkpoints, d.Change) {
				checkpoints = append(checkpoints, d.Change)
			}
		}
		if len(checkpoints) > 0 {
			break
		}
	}
	return checkpoints
}
