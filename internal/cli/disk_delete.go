package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/repository"
)

func (s *session) diskDelete() *cobra.Command {
	var form string
	var d display
	var yes bool
	c := &cobra.Command{
		Use: "delete ID...", Aliases: []string{"rm"}, Short: "Delete restore points",
		Long: `Delete restore points: all that are named, or none. The others stay whole. What no other
restore point shares is freed by varve repo maintenance --full.

A pinned restore point is not deleted: unpin it first. One that is damaged so that it cannot be
listed is named by its whole ID. On a terminal the command shows what would go and asks;
elsewhere it needs --yes.`,
		Example: `  varve disk delete 5e1f9c

  # In a script
  varve disk delete 5e1f9c 77ab02 --yes`,
		Args: atLeastOne("the IDs of restore points"), ValidArgsFunction: s.completePoints(1 << 10),
		PreRunE: func(*cobra.Command, []string) error {
			if !yes && s.Streams.ReadPassword == nil {
				return usage("deleting needs --yes where nobody can be asked")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.withWritable(cmd.Context(), func(r *repository.Repository) error {
				l, err := listPoints(cmd.Context(), r)
				if err != nil {
					return err
				}
				points, err := deletable(cmd.Context(), r, l, args)
				if err != nil {
					return err
				}
				if !yes {
					if err := pointTable(l, points, false).write(cmd.ErrOrStderr()); err != nil {
						return err
					}
					if err := s.confirm(cmd.Context(), fmt.Sprintf("Delete %s?", human.Count(len(points), "restore point"))); err != nil {
						return err
					}
				}
				if err := s.deletePoints(cmd.Context(), r, pointIDs(points), &d); err != nil {
					return err
				}
				if form != "" {
					return printPoints(cmd.OutOrStdout(), form, points)
				}
				for _, p := range points {
					fmt.Fprintf(cmd.OutOrStdout(), "restore point %s of %s deleted\n", p.ID, human.Line(sourceName(p.Source)))
				}
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	d.flags(c, "while it works")
	outputFlag(c, &form, asJSON, asYAML, asName)
	return c
}

// deletePoints deletes restore points, and shows that it does: with many of them in a bucket that takes a while.
func (s *session) deletePoints(ctx context.Context, r *repository.Repository, ids []string, d *display) error {
	return d.during(s, func(show func(progress.Report)) error {
		show(progress.Report{Name: "repository", Phase: "Deleting", Message: human.Count(len(ids), "restore point")})
		return r.Delete(ctx, ids...)
	})
}

// deletable are the restore points that prefixes name, if all of them may go. One that cannot be read is named by its whole ID.
func deletable(ctx context.Context, r *repository.Repository, l *pointList, prefixes []string) ([]*repository.RestorePoint, error) {
	var unreadable []*repository.RestorePoint
	var readable []string
	for _, prefix := range prefixes {
		if _, err := l.find(prefix); errors.Is(err, repository.ErrCorrupt) {
			if _, err := r.Get(ctx, prefix); errors.Is(err, repository.ErrCorrupt) {
				unreadable = append(unreadable, &repository.RestorePoint{ID: prefix})
				continue
			}
		}
		readable = append(readable, prefix)
	}
	points, err := l.findAll(readable)
	if err != nil {
		return nil, err
	}
	return append(points, unreadable...), unpinned(points)
}

func pointIDs(points []*repository.RestorePoint) (ids []string) {
	for _, p := range points {
		ids = append(ids, p.ID)
	}
	return ids
}

// unpinned refuses pinned restore points.
func unpinned(points []*repository.RestorePoint) error {
	for _, p := range points {
		if p.Pinned() {
			return &failure{
				err: fmt.Errorf("restore point %s is pinned (%s)", p.ID, joined(p.Pins)), code: CodeRefused,
				hint: "`varve disk unpin` removes a pin; nothing was deleted",
			}
		}
	}
	return nil
}

func joined(names []string) string { return strings.Join(names, ", ") }
