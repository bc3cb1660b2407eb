package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/retention"
)

// pruning is what the flags of `disk prune` say.
type pruning struct {
	policy         retention.Policy
	within, zone   string
	perDisk, perVM bool
	dryRun         bool
	form           string
	sources        sourceFlags
	display        display
}

// pruned is the result of `disk prune`.
type pruned struct {
	DryRun bool `json:"dryRun"`
	// Items are the restore points, one history after another, newest first.
	Items []verdict `json:"items"`
}

// verdict is the decision about a restore point.
type verdict struct {
	identified `json:",inline"`

	Keep bool `json:"keep"`
	// Reasons are the rules that keep it.
	Reasons []string `json:"reasons"`
	Damaged bool     `json:"damaged,omitempty"`
}

func (s *session) diskPrune() *cobra.Command {
	var q pruning
	c := &cobra.Command{
		Use: "prune [NAME]", Short: "Remove restore points that no rule keeps",
		Long: `Remove the restore points that no rule keeps, of one name or of all. Each history is decided
alone, and the rules add up: a restore point that any of them keeps stays. --dry-run shows what
would go, and for each of the others the rules that keep it; nothing is removed.

--keep-hourly and its like keep the newest restore point of as many of the newest hours that
have one. --keep-within keeps those of the span before the newest.

Whatever the rules say, these stay: the newest good one, pinned ones, those in the future, and
damaged ones (unless --remove-damaged). What is damaged is told as by varve repo check, if there is
a sign of damage: a blob is missing or too short, a restore point cannot be read, or the last
varve repo maintenance --full failed.

The rules look at restore points as a whole (--per-vm) or at the history of each disk alone
(--per-disk): then a restore point stays while a rule keeps it for any of its disks.

What goes is freed by varve repo maintenance --full.`,
		Example: `  # What would go, and why does the rest stay?
  varve disk prune web --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --dry-run

  # All histories of a host
  varve disk prune --host host1 --keep-last 3 --keep-within 14d`,
		Args: atMostOne("at most the name of a history"), ValidArgsFunction: s.completeHistory(false),
		PreRunE: func(*cobra.Command, []string) error { return q.valid() },
		RunE: func(cmd *cobra.Command, args []string) error {
			with := s.withWritable
			if q.dryRun {
				with = s.withRepository
			}
			return with(cmd.Context(), func(r *repository.Repository) error { return s.prune(cmd, r, &q, args) })
		},
	}
	q.flags(c)
	return c
}

func (q *pruning) flags(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&q.policy.Last, "keep-last", 0, "keep the newest N")
	f.IntVar(&q.policy.Hourly, "keep-hourly", 0, "keep the newest of each of N hours")
	f.IntVar(&q.policy.Daily, "keep-daily", 0, "keep the newest of each of N days")
	f.IntVar(&q.policy.Weekly, "keep-weekly", 0, "keep the newest of each of N weeks, from Monday")
	f.IntVar(&q.policy.Monthly, "keep-monthly", 0, "keep the newest of each of N months")
	f.IntVar(&q.policy.Yearly, "keep-yearly", 0, "keep the newest of each of N years")
	f.StringVar(&q.within, "keep-within", "", "keep those of a span before the newest, such as 36h, 14d, 6m (months) or 1y6m")
	f.StringVar(&q.zone, "time-zone", "UTC", "where hours and days begin: UTC, Local or a name such as Europe/Berlin")
	f.BoolVar(&q.policy.RemoveDamaged, "remove-damaged", false, "do not keep damaged restore points that are older than a good one")
	f.BoolVar(&q.perVM, "per-vm", false, "decide on whole restore points (the default)")
	f.BoolVar(&q.perDisk, "per-disk", false, "decide on the history of each disk: a restore point stays while it is kept for any of its disks")
	f.BoolVar(&q.dryRun, "dry-run", false, "only show what would go")
	q.sources.flags(c, "only histories")
	q.display.flags(c, "while it works")
	outputFlag(c, &q.form, asTable, asJSON, asYAML)
}

func (q *pruning) valid() (err error) {
	if q.within != "" {
		if q.policy.Within, err = retention.ParseSpan(q.within); err != nil {
			return usage("--keep-within: %s", err)
		}
	}
	if q.policy.Location, err = time.LoadLocation(q.zone); err != nil {
		return usage("--time-zone: %s", err)
	}
	if q.perDisk && q.perVM {
		return usage("--per-disk and --per-vm exclude each other")
	}
	if err := q.policy.Validate(); err != nil {
		return usage("%s", err)
	}
	return nil
}

func (s *session) prune(cmd *cobra.Command, r *repository.Repository, q *pruning, names []string) error {
	l, bad, err := s.pruneFrom(cmd.Context(), r, q, names)
	if err != nil {
		return err
	}
	l.warn(cmd.ErrOrStderr())
	out := pruned{DryRun: q.dryRun, Items: []verdict{}}
	// Decide everything before deleting anything.
	for _, history := range l.histories(&q.sources, names) {
		verdicts, err := q.decide(s.Now(), history, bad)
		if err != nil {
			return fmt.Errorf("history %s: %w", history[0].Source, err)
		}
		out.Items = append(out.Items, verdicts...)
	}
	var remove []string
	for _, v := range out.Items {
		if !v.Keep {
			remove = append(remove, v.ID)
		}
	}
	if len(remove) > 0 && !q.dryRun {
		if err := s.deletePoints(cmd.Context(), r, remove, &q.display); err != nil {
			return err
		}
	}
	if q.form == asJSON || q.form == asYAML {
		return printData(cmd.OutOrStdout(), q.form, out)
	}
	return out.print(cmd.OutOrStdout(), cmd.ErrOrStderr(), l, len(remove))
}

// pruneFrom lists the restore points. If there is a sign of damage, it lists only the selected ones, and also returns
// their damaged disks.
func (s *session) pruneFrom(ctx context.Context, r *repository.Repository, q *pruning, names []string) (*pointList, map[string]map[string]bool, error) {
	var report *repository.Report
	err := q.display.during(s, func(show func(progress.Report)) error {
		show(progress.Report{Name: "repository", Phase: "Checking"})
		doubt, err := r.SignOfDamage(ctx)
		if err != nil || !doubt {
			return err
		}
		selected := func(p *repository.RestorePoint) bool { return q.sources.selects(p.Source, names) }
		report, err = verify(ctx, r, 0, selected, show)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if report == nil {
		l, err := listPoints(ctx, r)
		return l, nil, err
	}
	return newPointList(report.Points, report.Unlisted), damagedDisks(report), nil
}

// damagedDisks returns the names of the damaged disks of restore points, by ID.
func damagedDisks(report *repository.Report) map[string]map[string]bool {
	bad := map[string]map[string]bool{}
	for _, d := range report.Damage {
		if bad[d.Point.ID] == nil {
			bad[d.Point.ID] = map[string]bool{}
		}
		bad[d.Point.ID][d.Disk] = true
	}
	return bad
}

// histories returns the selected restore points, grouped by source.
func (l *pointList) histories(f *sourceFlags, names []string) [][]*repository.RestorePoint {
	var out [][]*repository.RestorePoint
	at := map[repository.Source]int{}
	for _, p := range l.points {
		if !f.selects(p.Source, names) {
			continue
		}
		i, ok := at[p.Source]
		if !ok {
			i = len(out)
			at[p.Source] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], p)
	}
	return out
}

// decide returns the verdicts on a history, newest restore point first. bad has the damaged disks.
func (q *pruning) decide(now time.Time, history []*repository.RestorePoint, bad map[string]map[string]bool) ([]verdict, error) {
	var points []retention.Point
	byID := map[string]*repository.RestorePoint{}
	history = lastMadeFirst(history)
	for _, p := range history {
		byID[p.ID] = p
		points = appendPoint(points, p, len(bad[p.ID]) == 0)
	}
	// This is also the order in which they are shown.
	whole, err := retention.Decide(q.policy, now, points)
	if err != nil {
		return nil, err
	}
	var out []verdict
	for _, d := range whole {
		out = append(out, verdict{identified: identify(byID[d.Point.ID]), Keep: d.Keep, Reasons: append([]string{}, d.Reasons...), Damaged: !d.Point.Good})
	}
	if q.perDisk {
		return out, q.decidePerDisk(now, history, bad, out)
	}
	return out, nil
}

// appendPoint adds what retention needs to know about a restore point, or about a disk in it. points has those that
// were made later.
func appendPoint(points []retention.Point, p *repository.RestorePoint, good bool) []retention.Point {
	return append(points, retention.Point{ID: p.ID, Time: p.Time, Pinned: p.Pinned(), Good: good, MadeLast: len(points) == 0})
}

// lastMadeFirst returns the restore points of a history, beginning with the one that was made last.
func lastMadeFirst(history []*repository.RestorePoint) []*repository.RestorePoint {
	out := slices.Clone(history)
	repository.SortByMaking(out)
	slices.Reverse(out)
	return out
}

// decidePerDisk replaces the verdicts on whole restore points by those on their disks. history begins with the restore
// point that was made last.
func (q *pruning) decidePerDisk(now time.Time, history []*repository.RestorePoint, bad map[string]map[string]bool, out []verdict) error {
	at := map[string]int{}
	for i := range out {
		at[out[i].ID] = i
		out[i].Keep, out[i].Reasons = false, []string{}
	}
	var names []string
	points := map[string][]retention.Point{}
	for _, p := range history {
		for _, name := range diskNames(p) {
			if points[name] == nil {
				names = append(names, name)
			}
			points[name] = appendPoint(points[name], p, !bad[p.ID][name])
		}
	}
	for _, name := range names {
		decisions, err := retention.Decide(q.policy, now, points[name])
		if err != nil {
			return fmt.Errorf("disk %s: %w", name, err)
		}
		for _, d := range decisions {
			v := &out[at[d.Point.ID]]
			v.Keep = v.Keep || d.Keep
			if d.Keep {
				v.Reasons = append(v.Reasons, name+": "+strings.Join(d.Reasons, " + "))
			}
		}
	}
	return nil
}

func (o pruned) print(w, summary io.Writer, l *pointList, removed int) error {
	if len(o.Items) == 0 {
		fmt.Fprintln(summary, "No restore points of this kind in the repository.")
		return nil
	}
	t := &table{header: []string{"ACTION", "TIME", "ID", "HOST", "NAME", "KEPT BY"}}
	for _, v := range o.Items {
		action := "keep"
		if !v.Keep {
			action = "remove"
		}
		t.add(action, timeText(v.Time), l.short(v.ID), v.Source.Host, sourceName(v.Source), strings.Join(v.Reasons, ", "))
	}
	if err := t.write(w); err != nil {
		return err
	}
	text := fmt.Sprintf("%s removed, %d kept", human.Count(removed, "restore point"), len(o.Items)-removed)
	if o.DryRun {
		text = fmt.Sprintf("%s would be removed, %d kept: this was a dry run", human.Count(removed, "restore point"), len(o.Items)-removed)
	}
	_, err := fmt.Fprintln(summary, human.Line(text))
	return err
}
