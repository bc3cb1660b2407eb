package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/errclass"
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
listed is named by its whole ID. One that another program has deleted, such as kopia's CLI, is
forgotten, if varve repo repair is not to bring it back. On a terminal the command shows what
would go and asks; elsewhere it needs --yes.`,
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
				l, err := listNamed(cmd.Context(), r, args...)
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
					fmt.Fprintf(cmd.OutOrStdout(), "restore point %s%s deleted\n", p.ID, ofMachine(p))
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

// deletePoints deletes restore points and shows its progress, because deleting many of them in a bucket takes a while.
func (s *session) deletePoints(ctx context.Context, r *repository.Repository, ids []string, d *display) error {
	return d.during(s, func(show func(progress.Report)) error {
		show(progress.Report{Name: "repository", Phase: "Deleting", Message: human.Count(len(ids), "restore point")})
		return r.Delete(ctx, ids...)
	})
}

// deletable returns the restore points that prefixes name, if all of them may be deleted. One that cannot be read must
// be named by its whole ID. One that is lost, because another program has deleted it, is looked up among the lost ones.
func deletable(ctx context.Context, r *repository.Repository, l *pointList, prefixes []string) ([]*repository.RestorePoint, error) {
	var others []*repository.RestorePoint
	var readable []string
	for _, prefix := range prefixes {
		_, notListed := l.find(prefix)
		if !errors.Is(notListed, errclass.Corrupt) && !errors.Is(notListed, errclass.NotFound) {
			readable = append(readable, prefix) // it exists, or the prefix is not valid
			continue
		}
		p, err := unlisted(ctx, r, prefix)
		if err != nil {
			return nil, err
		}
		if p == nil {
			readable = append(readable, prefix)
			continue
		}
		others = append(others, p)
	}
	points, err := l.findAll(readable)
	if err != nil {
		return nil, err
	}
	return append(points, others...), unpinned(points)
}

// unlisted returns the restore point that is not in the list because it cannot be read or is lost, or nil.
func unlisted(ctx context.Context, r *repository.Repository, prefix string) (*repository.RestorePoint, error) {
	_, err := r.Get(ctx, prefix)
	switch {
	case errors.Is(err, errclass.Corrupt):
		return &repository.RestorePoint{ID: prefix}, nil
	case err != nil && !errors.Is(err, errclass.NotFound):
		return nil, err
	}
	lost, err := r.Lost(ctx)
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return nil, err
	}
	p, err := newPointList(lost, nil).find(prefix)
	if errors.Is(err, errclass.NotFound) {
		return nil, nil //nolint:nilnil // as documented
	}
	return p, err
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
				err: fmt.Errorf("restore point %s is pinned (%s)", p.ID, joined(p.Pins)), code: errclass.ExitRefused,
				hint: "`varve disk unpin` removes a pin; nothing was deleted",
			}
		}
	}
	return nil
}

// ofMachine returns whose restore point it is, if that is known.
func ofMachine(p *repository.RestorePoint) string {
	if p.Source.Path == "" {
		return ""
	}
	return " of " + human.Line(sourceName(p.Source))
}

func joined(names []string) string { return strings.Join(names, ", ") }
