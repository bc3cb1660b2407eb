package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/schedule"
)

// retentionResult is what `schedule retention` shows. Its json tags are an interface for programs.
type retentionResult struct {
	Schedule string `json:"schedule"`
	// Rules are those that were applied: the schedule's, or what the flags say in place of them.
	Rules retentionRules `json:"rules"`
	// Items are the backups, the newest first.
	Items []retentionItem `json:"items"`
	Kept  int             `json:"kept"`
	Going int             `json:"going"`
}

type retentionRules struct {
	Retain int    `json:"retain"`
	Also   string `json:"also,omitempty"`
}

// retentionItem is a backup, and whether it stays.
type retentionItem struct {
	Backup string    `json:"backup"`
	Due    time.Time `json:"dueTime"`
	State  string    `json:"state"`
	Keep   bool      `json:"keep"`
	// Reasons are the rules that keep it.
	Reasons []string `json:"reasons"`
}

func newRetentionCommand(s *resource.Session) *cobra.Command {
	var form string
	var rules ruleFlags
	c := &cobra.Command{
		Use: "retention NAME", Short: "Show which backups a schedule keeps, and why",
		Long: `Show which backups of a schedule stay and which rules keep them, and which ones go. Nothing is
removed: the controller removes what no rule keeps, after each run.

With --retain and --keep-hourly to --keep-within, the command shows what these rules would keep, in
place of the schedule's. A number of 0, or an empty span, leaves out a rule of the schedule. You
change the schedule itself with kubectl: spec.retain, and annotations such as
varvebackup.io/keep-daily and varvebackup.io/keep-within.`,
		Example: `  varve schedule retention nightly

  # What would stay with other rules?
  varve schedule retention nightly --retain 3 --keep-daily 7 --keep-within 14d`,
		Args: cmdline.ExactArgs(1, "the name of a schedule"), ValidArgsFunction: s.CompleteArgs(newList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := rules.check(cmd.Flags()); err != nil {
				return err
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			o, err := getSchedule(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			rules.applyTo(o)
			backups, err := listBackups(cmd.Context(), c, o)
			if err != nil {
				return err
			}
			result, err := decideRetention(o, backups, s.Now())
			if err != nil {
				return err
			}
			if output.IsForPrograms(form) {
				return output.PrintData(cmd.OutOrStdout(), form, result)
			}
			return writeRetention(&output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}, result, form == output.AsWide)
		},
	}
	rules.addFlags(c)
	output.AddFlag(c, &form, output.AsTable, output.AsWide, output.AsJSON, output.AsYAML)
	return c
}

// ruleFlags are the rules that flags give in place of those of a schedule.
type ruleFlags struct {
	// retain is 0 if the schedule's counts.
	retain int
	keeps  keepFlags
}

func (r *ruleFlags) addFlags(c *cobra.Command) {
	c.Flags().IntVar(&r.retain, "retain", 0, "how many backups stay (default: what the schedule says)")
	r.keeps.addFlags(c)
}

// check refuses rules that no schedule may have.
func (r *ruleFlags) check(flags *pflag.FlagSet) error {
	if flags.Changed("retain") && (r.retain < leastRetain || r.retain > mostRetain) {
		return failure.Usage("--retain %d: it must be from %d to %d", r.retain, leastRetain, mostRetain)
	}
	var alone harvesterv1.ScheduleVMBackup
	r.applyTo(&alone)
	if _, err := schedule.ReadPolicy(&alone, time.UTC); err != nil {
		return failure.Usage("%s", asFlags.Replace(err.Error()))
	}
	return nil
}

// applyTo writes the rules into a schedule, which is not sent.
func (r *ruleFlags) applyTo(o *harvesterv1.ScheduleVMBackup) {
	if r.retain > 0 {
		o.Spec.Retain = r.retain
	}
	r.keeps.applyTo(o)
}

// decideRetention says what the controller would keep of a schedule's backups.
func decideRetention(
	o *harvesterv1.ScheduleVMBackup, backups []harvesterv1.VirtualMachineBackup, now time.Time,
) (*retentionResult, error) {
	times, err := schedule.ReadTimes(o)
	if err != nil {
		return nil, failure.New("", "the retention of schedule %s: %w", o.Name, err)
	}
	var made []*harvesterv1.VirtualMachineBackup
	for i := range backups {
		if schedule.IsScheduled(&backups[i]) {
			made = append(made, &backups[i])
		}
	}
	decisions, err := schedule.DecideRetention(o, times.Location(), now, made)
	if err != nil {
		return nil, failure.New("", "the retention of schedule %s: %w", o.Name, err)
	}
	r := &retentionResult{
		Schedule: o.Name, Rules: retentionRules{Retain: o.Spec.Retain, Also: describeKeepRules(o)},
		Items: []retentionItem{},
	}
	for _, d := range slices.Backward(decisions) {
		r.Items = append(r.Items, retentionItem{
			Backup: d.Backup.Name, Due: schedule.DueTime(d.Backup).UTC(), State: machinebackup.Phase(d.Backup), Keep: d.Keep,
			Reasons: append([]string{}, d.Reasons...),
		})
		if d.Keep {
			r.Kept++
		} else {
			r.Going++
		}
	}
	return r, nil
}

func writeRetention(p *output.Page, r *retentionResult, wide bool) error {
	t := &output.Table{Header: []string{"DUE", "STATE", "DECISION", "WHY"}}
	if wide {
		t.Header = append(t.Header, "NAME")
	}
	for i := range r.Items {
		item := &r.Items[i]
		row := []string{output.FormatTime(item.Due), item.State, "kept", strings.Join(item.Reasons, ", ")}
		if !item.Keep {
			row[2], row[3] = "goes", cmp.Or(row[3], "no rule keeps it")
		}
		if wide {
			row = append(row, item.Backup)
		}
		t.Add(row...)
	}
	if len(t.Rows) > 0 {
		p.Keep(t.Write(p.Out))
		_, err := fmt.Fprintln(p.Out)
		p.Keep(err)
	}
	also := ""
	if r.Rules.Also != "" {
		also = " and also keeps " + r.Rules.Also
	}
	_, err := fmt.Fprintf(p.Out, "schedule %s retains %d%s: %d kept, %d to go\n", r.Schedule, r.Rules.Retain, also,
		r.Kept, r.Going)
	p.Keep(err)
	return p.Err
}
