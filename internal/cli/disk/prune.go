package disk

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/retention"
)

// pruneFlags is what the flags of `disk prune` say.
type pruneFlags struct {
	policy       mover.PrunePolicy
	within, zone string
	perVM        bool
	dryRun       bool
	form         string
	history      historyFlags
	display      session.Display
}

// pruneResult is the result of `disk prune`.
type pruneResult struct {
	DryRun bool `json:"dryRun"`
	// Items are the restore points, one history after another, newest first.
	Items []pruneDecision `json:"items"`
}

// pruneDecision is the decision about a restore point.
type pruneDecision struct {
	restorepoint.Identity `json:",inline"`

	Keep bool `json:"keep"`
	// Reasons are the rules that keep it.
	Reasons []string `json:"reasons"`
	Damaged bool     `json:"damaged,omitempty"`
}

func newPruneCommand(s *repoaccess.Session) *cobra.Command {
	var q pruneFlags
	c := &cobra.Command{
		Use: "prune [NAME]", Short: "Remove restore points that no rule keeps",
		Long: `Remove the restore points that no rule keeps, of one name or of all. The rules apply to each
history alone, and they add up: a restore point stays if any rule keeps it. --dry-run removes
nothing; it shows which restore points would be removed, and which rules keep the others.

--keep-hourly N keeps the newest restore point of each of the N newest hours that have one, and
--keep-daily to --keep-yearly do the same. --keep-within keeps all in the span before the newest.

Some restore points always stay: the newest good one, pinned ones, those in the future, and
damaged ones (unless --remove-damaged). The command looks for damage, as varve repo check does, if
there is a sign of it: a blob is missing or too short, a restore point cannot be read, or the last
varve repo maintenance --full failed.

The rules apply to restore points as a whole (--per-vm), or to the history of each disk
(--per-disk): then a restore point stays if a rule keeps it for any of its disks.

varve repo maintenance --full frees the data of what was removed.`,
		Example: `  # What would be removed, and why does the rest stay?
  varve disk prune web --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --dry-run

  # All histories of a host
  varve disk prune --host host1 --keep-last 3 --keep-within 14d`,
		Args: cmdline.AtMostOne("at most the name of a history"), ValidArgsFunction: completeHistory(s, false),
		PreRunE: func(*cobra.Command, []string) error { return q.validateFlags() },
		RunE: func(cmd *cobra.Command, args []string) error {
			with := s.WithWritable
			if q.dryRun {
				with = s.WithRepository
			}
			return with(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
				return prunePoints(ctx, s, cmd, r, &q, args)
			})
		},
	}
	q.addFlags(c)
	return c
}

func (q *pruneFlags) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&q.policy.Last, "keep-last", 0, "keep the newest N")
	f.IntVar(&q.policy.Hourly, "keep-hourly", 0, "keep the newest of each of N hours")
	f.IntVar(&q.policy.Daily, "keep-daily", 0, "keep the newest of each of N days")
	f.IntVar(&q.policy.Weekly, "keep-weekly", 0, "keep the newest of each of N weeks, from Monday")
	f.IntVar(&q.policy.Monthly, "keep-monthly", 0, "keep the newest of each of N months")
	f.IntVar(&q.policy.Yearly, "keep-yearly", 0, "keep the newest of each of N years")
	f.StringVar(&q.within, "keep-within", "", "keep all in a span before the newest, such as 36h, 14d, 6m (months) or 1y6m")
	f.StringVar(&q.zone, "time-zone", "UTC", "the time zone of hours and days: UTC, Local or a name such as Europe/Berlin")
	f.BoolVar(&q.policy.RemoveDamaged, "remove-damaged", false, "do not keep damaged restore points that are older than a good one")
	f.BoolVar(&q.perVM, "per-vm", false, "decide on whole restore points (the default)")
	f.BoolVar(&q.policy.PerDisk, "per-disk", false, "decide on the history of each disk: a restore point stays while it is kept for any of its disks")
	f.BoolVar(&q.dryRun, "dry-run", false, "only show what would be removed")
	q.history.addFlags(c, "only histories")
	q.display.AddFlag(c, "while it works")
	output.AddFlag(c, &q.form, output.AsTable, output.AsJSON, output.AsYAML)
}

func (q *pruneFlags) validateFlags() (err error) {
	if q.within != "" {
		if q.policy.Within, err = retention.ParseSpan(q.within); err != nil {
			return failure.Usage("--keep-within: %s", err)
		}
	}
	if q.policy.Location, err = time.LoadLocation(q.zone); err != nil {
		return failure.Usage("--time-zone: %s", err)
	}
	if q.policy.PerDisk && q.perVM {
		return failure.Usage("--per-disk and --per-vm exclude each other")
	}
	if err := q.policy.Validate(); err != nil {
		return failure.Usage("%s", err)
	}
	return nil
}

func prunePoints(ctx context.Context, s *repoaccess.Session, cmd *cobra.Command, r *repository.Repository, q *pruneFlags, names []string) error {
	var survey *mover.PruneSurvey
	err := q.display.ShowWhile(s.Session, func(show func(progress.Report)) (err error) {
		survey, err = mover.SurveyPrune(ctx, r, q.history.newFilter(names), func(p mover.Progress) { show(repoaccess.NewReport("repository", p)) })
		return err
	})
	if err != nil {
		return err
	}
	l := restorepoint.NewList(survey.Points)
	l.WarnUnreadable(cmd.ErrOrStderr())
	// Decide everything before deleting anything.
	decisions, err := survey.Decide(q.policy, s.Now())
	if err != nil {
		return err
	}
	out := pruneResult{DryRun: q.dryRun, Items: []pruneDecision{}}
	for _, d := range decisions {
		out.Items = append(out.Items, pruneDecision{Identity: restorepoint.Identify(d.Point), Keep: d.Keep, Reasons: append([]string{}, d.Reasons...), Damaged: d.Damaged})
	}
	remove := mover.RemovedIDs(decisions)
	if len(remove) > 0 && !q.dryRun {
		if err := deletePoints(ctx, s, r, remove, &q.display); err != nil {
			return err
		}
	}
	if output.IsForPrograms(q.form) {
		return output.PrintData(cmd.OutOrStdout(), q.form, out)
	}
	return out.printTable(cmd.OutOrStdout(), cmd.ErrOrStderr(), l, len(remove))
}

func (o pruneResult) printTable(w, summary io.Writer, l *restorepoint.List, removed int) error {
	if len(o.Items) == 0 {
		fmt.Fprintln(summary, "No restore points match.")
		return nil
	}
	t := &output.Table{Header: []string{"ACTION", "TIME", "ID", "HOST", "NAME", "KEPT BY"}}
	for _, v := range o.Items {
		action := "keep"
		if !v.Keep {
			action = "remove"
		}
		t.Add(action, output.FormatTime(v.Time), l.ShortID(v.ID), v.Source.Host, mover.HistoryName(v.Source), strings.Join(v.Reasons, ", "))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	text := fmt.Sprintf("%s removed, %d kept", human.Count(removed, "restore point"), len(o.Items)-removed)
	if o.DryRun {
		text = fmt.Sprintf("%s would be removed, %d kept: this was a dry run", human.Count(removed, "restore point"), len(o.Items)-removed)
	}
	_, err := fmt.Fprintln(summary, human.Line(text))
	return err
}
