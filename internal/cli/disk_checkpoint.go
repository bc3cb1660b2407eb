package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

// checkpointPrefix is the beginning of every checkpoint name.
const checkpointPrefix = "varve-"

// checkpointName is the form of names that nobody uses twice: 128 random bits. With --track, the owner's hash precedes
// them.
var checkpointName = regexp.MustCompile(`^` + checkpointPrefix + `([0-9a-f]{16}-)?[0-9a-f]{32}$`)

func (s *session) diskCheckpoint() *cobra.Command {
	var f sourceFlags
	var diskName string
	c := &cobra.Command{
		Use: "checkpoint [NAME]", Short: "Print the name of a new checkpoint, or of the last one",
		Long: `Print a name for a checkpoint: the moment of a backup in the change tracking of QEMU or libvirt,
whose dirty bitmap has the same name. The name was never used before and is not printed again.

It is for backups of a running guest, whose bitmaps your script adds and removes: give it to the
bitmap or checkpoint that you add, and to --checkpoint of varve disk backup. Ask for a new name
for every attempt, and never add another bitmap of that name.

With the NAME of a machine, print the checkpoint of its latest restore point: the next backup's
--bitmap. If there is none (exit code 3), back up without --bitmap.

varve disk backup --track needs no names.`,
		Example: `  varve disk checkpoint

  # What the next backup of web is counted from
  varve disk checkpoint web`,
		Args: atMostOne("at most the name of a history"), ValidArgsFunction: s.completeHistory(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), checkpointPrefix+randomToken())
				return nil
			}
			if err := historyName(args[0]); err != nil {
				return err
			}
			return s.withRepository(cmd.Context(), func(r *repository.Repository) error {
				name, err := lastCheckpoint(cmd.Context(), r, r.Source(f.host, f.user, sourcePath(args[0])), diskName)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return err
			})
		},
	}
	f.flags(c, "the history")
	s.diskFlag(c, &diskName)
	return c
}

func randomToken() string {
	var token [16]byte
	_, _ = rand.Read(token[:]) // it never fails
	return hex.EncodeToString(token[:])
}

// validateCheckpoint refuses a name that could be used twice.
func validateCheckpoint(flag, name string) error {
	if checkpointName.MatchString(name) {
		return nil
	}
	return usage("%s %s: only names that `varve disk checkpoint` has printed can be used, because one that is used twice makes backups that are wrong", flag, name)
}

// hasCheckpoint checks that the bitmap of this backup's checkpoint is in the image. A bitmap that is added later lacks
// what is written until then. It cannot check an NBD server: libvirt does not export the new bitmap.
func (d *diskSpec) hasCheckpoint(ctx context.Context) error {
	if !d.isImage() || d.checkpoint == "" {
		return nil
	}
	bitmaps, err := disk.Bitmaps(ctx, d.where)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(bitmaps, func(b disk.Bitmap) bool { return b.Name == d.checkpoint }) {
		return nil
	}
	return &failure{
		err: fmt.Errorf("%s has no bitmap %s, which --checkpoint names: the next backup needs it", d.where, d.checkpoint), code: errclass.ExitRefused,
		hint: "add the bitmap before the backup, or let Varve do that: --track",
	}
}

// lastCheckpoint returns the checkpoint of a disk's latest restore point.
func lastCheckpoint(ctx context.Context, r *repository.Repository, source repository.Source, diskName string) (string, error) {
	points, err := r.List(ctx, &source)
	if err != nil {
		return "", err // a damaged one may be the latest
	}
	repository.SortByMaking(points)
	var changes []string
	for _, p := range slices.Backward(points) {
		for _, d := range p.Disks {
			if (diskName == "" || d.Name == diskName) && !slices.Contains(changes, d.Change) {
				changes = append(changes, d.Change)
			}
		}
		if len(changes) > 0 {
			break
		}
	}
	switch {
	case len(changes) > 1:
		return "", usage("the disks of the latest restore point have different checkpoints: select one with --disk")
	case len(changes) == 0 || changes[0] == "":
		return "", &failure{err: errors.New("the latest restore point has no checkpoint, or there is none"), code: errclass.ExitNotFound, hint: "back up without --bitmap, and with --checkpoint"}
	}
	return changes[0], nil
}
