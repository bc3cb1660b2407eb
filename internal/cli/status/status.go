// Package status has `varve status`: whether each machine has the restore points that its schedules promise.
package status

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/errclass"
)

// NewCommand makes `varve status`.
func NewCommand(s *resource.Session) *cobra.Command {
	var form string
	var all bool
	c := &cobra.Command{
		Use: "status", Short: "Show whether each machine has the restore points that its schedules promise",
		Long: `Show a line for each virtual machine that has a schedule or a backup, those that need attention
first: its last restore point that is good, how many there are, the size of its disks, when the
next backup is due, and what failed and why. A total and the locations follow.

GROWTH is how much was new or changed a day, by the good backups of the last 7 days that are
there, before it is deduplicated and compressed. CHANGED of a location is how much that is in all
of its restore points. Nothing in the cluster tells how much space a location has left.

STATE is of the machine's schedules:

  Failed      the latest backup failed, or no backup can be made
  Overdue     the latest run made no backup, or none came when one was due
  Running     a backup runs, and the run before it was good
  OK          the latest run made a backup, and it is there
  New         no run was due yet
  Suspended   its user has suspended the schedule
  NoSchedule  the machine has backups, but no schedule

The exit code is 7 if a machine is Failed or Overdue, so that monitoring can run the command. Of
several schedules, the worst state counts. A machine that was deleted and made again is Overdue
until the new one has a good backup. -o wide adds the schedules, and how much of the last good
restore point was new or changed.`,
		Example: `  varve status

  # The whole cluster
  varve status -A

  # For monitoring: which machines need attention?
  varve status -A -o jsonpath='{.items[?(@.needsAttention==true)].machine}'`,
		Args: cmdline.ExactArgs(0, "no argument"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			options, where := []client.ListOption{client.InNamespace(c.Namespace)}, "namespace "+c.Namespace
			if all {
				options, where = nil, "all namespaces"
			}
			var seen objects
			for _, list := range []client.ObjectList{&seen.schedules, &seen.backups, &seen.machines} {
				if err := c.List(cmd.Context(), list, options...); err != nil {
					return fmt.Errorf("read the schedules, backups and machines of %s: %w", where, err)
				}
			}
			r := newReport(&seen, s.Now())
			if output.IsForPrograms(form) {
				err = output.PrintData(cmd.OutOrStdout(), form, r)
			} else {
				p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
				writeReport(p, r, where, all, form == output.AsWide)
				err = p.Err
			}
			if err != nil {
				return err
			}
			return r.complaint(s)
		},
	}
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "show the machines of all namespaces")
	output.AddFlag(c, &form, output.AsTable, output.AsWide, output.AsJSON, output.AsYAML)
	s.AddClusterFlags(c)
	return c
}

// objects are what a report is made of.
type objects struct {
	schedules harvesterv1.ScheduleVMBackupList
	backups   harvesterv1.VirtualMachineBackupList
	machines  kubevirtv1.VirtualMachineList
}

// complaint is the error that makes the exit code, or nil if no machine needs attention.
func (r *report) complaint(s *resource.Session) error {
	var names []string
	for i := range r.Items {
		if m := &r.Items[i]; m.NeedsAttention {
			names = append(names, m.Namespace+"/"+m.Machine+" ("+string(m.State)+")")
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &failure.Error{
		Err: fmt.Errorf("%d of %s without the restore point that it should have: %s", len(names),
			human.Count(len(r.Items), "machine"), strings.Join(names, ", ")),
		Code: errclass.ExitOverdue,
		Hint: s.CommandHint("schedule describe NAME") + " shows the last runs of a schedule",
	}
}

func writeReport(p *output.Page, r *report, where string, all, wide bool) {
	if len(r.Items) > 0 {
		p.Keep(newTable(p, r, all, wide).Write(p.Out))
		_, err := fmt.Fprintln(p.Out)
		p.Keep(err)
	}
	_, err := fmt.Fprintln(p.Out, r.Total.describe(where))
	p.Keep(err)
	t := &output.Table{Header: []string{"LOCATION", "VMS", "POINTS", "CHANGED", "GROWTH"}}
	for i := range r.Locations {
		l := &r.Locations[i]
		t.Add(l.Namespace+"/"+l.Name, fmt.Sprint(l.Machines), fmt.Sprint(l.RestorePoints), human.Bytes(l.ChangedBytes),
			describeGrowth(l.Growth))
	}
	p.Section("Locations", t, "")
}

func newTable(p *output.Page, r *report, all, wide bool) *output.Table {
	t := &output.Table{Header: []string{"VM", "STATE", "LAST GOOD", "POINTS", "SIZE", "GROWTH", "NEXT", "MESSAGE"}}
	if wide {
		t.Header = append(t.Header, "SCHEDULES", "CHANGED")
	}
	if all {
		t.Header = append([]string{"NAMESPACE"}, t.Header...)
	}
	for i := range r.Items {
		m := &r.Items[i]
		last, size, changed := "none", "", ""
		if m.LastGood != nil {
			last = p.Moment(m.LastGood.Time)
			size, changed = human.Bytes(m.LastGood.Bytes), human.Bytes(m.LastGood.ChangedBytes)
		}
		next := ""
		if m.Next != nil {
			next = "in " + human.Span(m.Next.Sub(p.Now))
		}
		row := []string{
			m.Machine, string(m.State), last, fmt.Sprint(m.RestorePoints), size, describeGrowth(m.Growth), next, m.Message,
		}
		if wide {
			row = append(row, strings.Join(m.Schedules, ","), changed)
		}
		if all {
			row = append([]string{m.Namespace}, row...)
		}
		t.Add(row...)
	}
	return t
}
