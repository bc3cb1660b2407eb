package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

func newListCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var f historyFlags
	var noHeaders bool
	c := &cobra.Command{
		Use: "list [NAME]", Aliases: []string{"ls"}, Short: "List restore points",
		Long: `List restore points, oldest first, of one name or of all: the disks, their size, how much
changed since the parent, and whether the backup was full and why.

-o wide adds the whole ID, the user, the parent, and the snapshot ID with which
` + "`varve data download create`" + ` makes a volume of what a cluster has stored.

The command fails (exit code 1) and names restore points that are damaged or that another program
deleted. It also fails (exit code 3) if no restore point has the NAME.`,
		Example: `  varve disk list

  # One history
  varve disk list web --host host1

  # What another cluster has stored of the namespace app, and how to restore it
  varve disk list --location default -n app -o wide

  # IDs, for a script
  varve disk list web -o name`,
		Args: cmdline.AtMostOne("at most the name of a history"), ValidArgsFunction: completeHistory(s, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.WithRepository(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
				l, err := restorepoint.ReadAll(ctx, r)
				if err != nil {
					return err
				}
				filter := f.newFilter(args)
				var points []*repository.RestorePoint
				for _, p := range l.All {
					if filter.Selects(p.Source) {
						points = append(points, p)
					}
				}
				lost, err := lostPoints(ctx, r, filter)
				if err != nil {
					return err
				}
				printer := &output.Printer{Out: cmd.OutOrStdout(), Form: form, NoHeaders: noHeaders}
				switch {
				case output.IsForPrograms(form) && (len(points) > 0 || !output.IsCustomColumns(form)):
					err = restorepoint.Print(printer, points)
				case len(points) == 0 && len(args) == 0 && lost == nil && l.Unreadable == nil:
					fmt.Fprintln(cmd.ErrOrStderr(), "No restore points match.")
				case len(points) == 0:
				default:
					err = printer.PrintTable(restorepoint.NewTable(l, points, form == output.AsWide))
				}
				if err != nil {
					return err
				}
				// What cannot be read, or is lost, may be what the user is looking for.
				if err := errors.Join(l.Unreadable, lost); err != nil || len(points) > 0 || len(args) == 0 {
					return err
				}
				return newNotFoundError(l, args[0])
			})
		},
	}
	f.addFlags(c, "only restore points")
	output.AddNoHeadersFlag(c, &noHeaders)
	output.AddFlag(c, &form, output.AsTable, output.AsWide, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

// lostPoints returns an error that names the selected restore points that were made and no longer exist, or nil.
func lostPoints(ctx context.Context, r *repository.Repository, filter mover.HistoryFilter) (lost, failed error) {
	points, err := r.Lost(ctx)
	if err != nil && !errors.Is(err, errclass.Corrupt) { // the list reports damage
		return nil, err
	}
	for _, p := range points {
		if p.Source.Path == "" || filter.Selects(p.Source) {
			lost = errors.Join(lost, fmt.Errorf("%w: restore point %s%s%s was made and no longer has a manifest: another program deleted it, or an index is missing", errclass.Corrupt, p.ID, machineSuffix(p), timeSuffix(p)))
		}
	}
	if lost == nil {
		return nil, nil
	}
	return &failure.Error{Err: lost, Code: errclass.ExitFailure, Hint: "`varve repo repair` brings it back if its data is still there, `varve disk delete` forgets it; until then, maintenance frees nothing"}, nil
}

func timeSuffix(p *repository.RestorePoint) string {
	if p.Time.IsZero() {
		return ""
	}
	return " at " + output.FormatTime(p.Time)
}

// newNotFoundError returns the error for a name without restore points. It suggests similar names.
func newNotFoundError(l *restorepoint.List, name string) error {
	var like []string
	for _, p := range l.All {
		other := mover.HistoryName(p.Source)
		if !slices.Contains(like, other) && other != name && resemblesName(name, other) {
			like = append(like, other)
		}
	}
	text := "no restore points of " + human.Line(name) + " match"
	if len(like) > 0 {
		text += "; did you mean " + human.Line(strings.Join(like, " or ")) + "?"
	}
	return &failure.Error{Err: errors.New(text), Code: errclass.ExitNotFound, Hint: "`varve disk list` shows all restore points"}
}

// maxTypos is how many letters of a name may be wrong.
const maxTypos = 2

// resemblesName reports whether a was probably meant to be b: one begins with the other, or a few letters were added, left
// out or replaced.
func resemblesName(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if strings.HasPrefix(a, b) || strings.HasPrefix(b, a) {
		return true
	}
	row := make([]int, len(b)+1) // Levenshtein distances between the beginning of a and those of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)] <= maxTypos && row[len(b)] < max(len(a), len(b))
}
