package disk

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

func newCheckpointCommand(s *repoaccess.Session) *cobra.Command {
	var f historyFlags
	var diskName string
	c := &cobra.Command{
		Use: "checkpoint [NAME]", Short: "Print the name of a new checkpoint, or of the last one",
		Long: `Print a name for a checkpoint: the moment of a backup in the change tracking of QEMU or libvirt,
whose dirty bitmap has the same name. Each name is new and is never printed again.

Use it for backups of a running guest, if your script adds and removes the bitmaps: give the name
to the bitmap or checkpoint that you add, and to --checkpoint of varve disk backup. Use a new name
for every attempt, and never add another bitmap with that name.

With the NAME of a machine, print the checkpoint of its latest restore point, for --bitmap of the
next backup. If there is none (exit code 3), back up without --bitmap.

varve disk backup --track needs no names.`,
		Example: `  varve disk checkpoint

  # The checkpoint from which the next backup of web starts
  varve disk checkpoint web`,
		Args: cmdline.AtMostOne("at most the name of a history"), ValidArgsFunction: completeHistory(s, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), mover.NewCheckpoint())
				return nil
			}
			if err := validateHistoryName(args[0]); err != nil {
				return err
			}
			return s.WithRepository(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
				name, err := lastCheckpoint(ctx, r, r.Source(f.host, f.user, mover.HistoryPath(args[0])), diskName)
				if err == nil {
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return err
			})
		},
	}
	f.addFlags(c, "the history")
	addDiskFlag(s, c, &diskName)
	return c
}

// validateCheckpoint refuses a name that could be used twice.
func validateCheckpoint(flag, name string) error {
	if mover.IsCheckpoint(name) {
		return nil
	}
	return failure.Usage("%s %s: use a name that `varve disk checkpoint` printed, because a name that is used twice makes wrong backups", flag, name)
}

// lastCheckpoint returns the checkpoint of a disk's latest restore point.
func lastCheckpoint(ctx context.Context, r *repository.Repository, source repository.Source, diskName string) (string, error) {
	points, err := r.List(ctx, &source)
	if err != nil {
		return "", err // a damaged one may be the latest
	}
	checkpoints := mover.LatestCheckpoints(points, diskName)
	switch {
	case len(checkpoints) > 1:
		return "", failure.Usage("the disks of the latest restore point have different checkpoints: select one with --disk")
	case len(checkpoints) == 0 || checkpoints[0] == "":
		return "", &failure.Error{Err: errors.New("the latest restore point has no checkpoint, or there is none"), Code: errclass.ExitNotFound, Hint: "back up without --bitmap, and with --checkpoint"}
	}
	return checkpoints[0], nil
}
