package disk

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

func newDeleteCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var d session.Display
	var yes bool
	c := &cobra.Command{
		Use: "delete ID...", Aliases: []string{"rm"}, Short: "Delete restore points",
		Long: `Delete restore points by their IDs: all that you name, or none. The others are not affected.
Data that no other restore point shares is freed by varve repo maintenance --full.

A pinned restore point is not deleted: unpin it first. Use the whole ID of a restore point that is
too damaged to be listed. If another program, such as kopia's CLI, deleted a restore point, its
record is deleted, and varve repo repair cannot bring it back. On a terminal, the command shows
what it would delete and asks. Without a terminal, it needs --yes.`,
		Example: `  varve disk delete 5e1f9c

  # In a script
  varve disk delete 5e1f9c 77ab02 --yes`,
		Args: cmdline.AtLeastOne("the IDs of restore points"), ValidArgsFunction: completePoints(s, 1<<10),
		PreRunE: func(*cobra.Command, []string) error {
			if !yes && s.Streams.ReadPassword == nil {
				return failure.Usage("without a terminal, deleting needs --yes")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.WithWritable(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
				l, ids, err := restorepoint.ReadNamed(ctx, r, args...)
				if err != nil {
					return err
				}
				if err := requireIDs(args, ids); err != nil {
					return err
				}
				points, err := mover.FindDeletable(ctx, r, l.Points, ids)
				if err != nil {
					return deleteFailure(err)
				}
				if !yes {
					if err := restorepoint.NewTable(l, points, false).Write(cmd.ErrOrStderr()); err != nil {
						return err
					}
					if err := s.Confirm(ctx, fmt.Sprintf("Delete %s?", human.Count(len(points), "restore point"))); err != nil {
						return err
					}
				}
				if err := deletePoints(ctx, s, r, mover.PointIDs(points), &d); err != nil {
					return err
				}
				if form != "" {
					return restorepoint.Print(&output.Printer{Out: cmd.OutOrStdout(), Form: form}, points)
				}
				for _, p := range points {
					fmt.Fprintf(cmd.OutOrStdout(), "restore point %s%s deleted\n", p.ID, machineSuffix(p))
				}
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	d.AddFlag(c, "while it works")
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

// requireIDs refuses words that stand for a latest restore point. By the time a script runs, that may be a newer one
// than its author meant.
func requireIDs(words, ids []string) error {
	for i, word := range words {
		if ids[i] != word {
			return failure.Usage("restore point %s: delete takes IDs only; the latest one is %s", human.Line(word), ids[i])
		}
	}
	return nil
}

// deletePoints deletes restore points and shows its progress, because deleting many of them in a bucket takes a while.
func deletePoints(ctx context.Context, s *repoaccess.Session, r *repository.Repository, ids []string, d *session.Display) error {
	return d.ShowWhile(s.Session, func(show func(progress.Report)) error {
		show(progress.Report{Name: "repository", Phase: "Deleting", Message: human.Count(len(ids), "restore point")})
		return r.Delete(ctx, ids...)
	})
}

// deleteFailure gives the refusal to delete a pinned restore point its hint.
func deleteFailure(err error) error {
	var pinned *mover.PinnedError
	if errors.As(err, &pinned) {
		return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: "`varve disk unpin` removes a pin; nothing was deleted"}
	}
	return err
}

// machineSuffix returns whose restore point it is, if that is known.
func machineSuffix(p *repository.RestorePoint) string {
	if p.Source.Path == "" {
		return ""
	}
	return " of " + human.Line(mover.HistoryName(p.Source))
}

func joinNames(names []string) string { return strings.Join(names, ", ") }
