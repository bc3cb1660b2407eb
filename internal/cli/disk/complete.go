package disk

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// offerPoints lists the restore points, and offers what words finds in them, if it begins with what was typed. It never
// asks for a password, and makes no pod: where it takes one, it offers nothing.
func offerPoints(s *repoaccess.Session, c *cobra.Command, typed string, words func(*restorepoint.List) []string) ([]string, cobra.ShellCompDirective) {
	if s.AsksPassword() {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	s.Hurry()
	ctx := c.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, cmdline.CompletionTimeout)
	defer cancel()
	var out []string
	err := s.WithRepository(ctx, func(ctx context.Context, r *repository.Repository) error {
		l, err := restorepoint.ReadAll(ctx, r)
		if err != nil {
			return err
		}
		out = slices.DeleteFunc(words(l), func(w string) bool { return !strings.HasPrefix(w, typed) })
		return nil
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// idWords returns the IDs with descriptions, without those in except.
func idWords(l *restorepoint.List, except []string) (out []string) {
	for _, p := range l.All {
		if !slices.Contains(except, p.ID) {
			out = append(out, p.ID+"\t"+output.FormatTime(p.Time)+" "+human.Line(mover.HistoryName(p.Source)))
		}
	}
	return out
}

// latestWords returns the words for latest restore points, with descriptions.
func latestWords(l *restorepoint.List) (out []string) {
	if len(l.All) > 0 {
		out = append(out, restorepoint.Latest+"\tthe latest restore point")
	}
	for _, history := range l.Histories(mover.HistoryFilter{}) {
		if name := mover.HistoryName(history[0].Source); validateHistoryName(name) == nil {
			out = append(out, name+"\tthe latest restore point of "+name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// completePoints offers the IDs of restore points for the first most arguments.
func completePoints(s *repoaccess.Session, most int) cmdline.Completer {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offerPoints(s, c, typed, func(l *restorepoint.List) []string { return append(idWords(l, args), latestWords(l)...) })
	}
}

// completePointThenFile offers the IDs of restore points, and then files.
func completePointThenFile(s *repoaccess.Session) cmdline.Completer {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return completePoints(s, 1)(c, args, typed)
	}
}

// completeHistory offers the names of histories for the first argument. If the other arguments are disks, it offers
// files for them.
func completeHistory(s *repoaccess.Session, disks bool) cmdline.Completer {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) > 0 && disks:
			return nil, cobra.ShellCompDirectiveDefault
		case len(args) > 0:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offerPoints(s, c, typed, func(l *restorepoint.List) (names []string) {
			for _, p := range l.All {
				if name := mover.HistoryName(p.Source); validateHistoryName(name) == nil {
					names = append(names, name)
				}
			}
			slices.Sort(names)
			return slices.Compact(names)
		})
	}
}

// completeDisk offers the disks of the restore point that the first argument names.
func completeDisk(s *repoaccess.Session) cmdline.Completer {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offerPoints(s, c, typed, func(l *restorepoint.List) []string {
			p, err := l.Find(args[0])
			if err != nil {
				return nil
			}
			return mover.DiskNames(p)
		})
	}
}

// completeParent offers values for --parent.
func completeParent(s *repoaccess.Session) cmdline.Completer {
	return func(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		choices := []string{repository.ParentAuto, repository.ParentNone}
		words, directive := offerPoints(s, c, typed, func(l *restorepoint.List) []string { return append(choices, idWords(l, nil)...) })
		if words == nil {
			return choices, cobra.ShellCompDirectiveNoFileComp
		}
		return words, directive
	}
}
