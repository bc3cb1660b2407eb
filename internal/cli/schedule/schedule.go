// Package schedule has the commands of `varve schedule`, and the judgement of schedules that `varve status` shares.
package schedule

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/cron"
)

// NewCommand makes `varve schedule`.
func NewCommand(s *resource.Session) *cobra.Command {
	return s.GroupCommand("schedule", "Create, list, run, suspend, resume and delete schedules of machine backups",
		`Create, list, describe, run, suspend, resume and delete schedules. A schedule backs up a virtual
machine at the times of a cron expression, and removes the oldest backups.

'varve status' shows whether each machine has the restore points that its schedules promise.`,
		`  varve schedule create nightly --vm web --cron "0 1 * * *" --time-zone Europe/Berlin
  varve schedule list
  varve schedule describe nightly`,
		[]string{"schedules", "schedulevmbackup", "schedulevmbackups", "svmbackup", "svmbackups"},
		newCreateCommand(s), newListCommand(s), newDescribeCommand(s), newSuspendCommand(s), newResumeCommand(s),
		newRunCommand(s), newRetentionCommand(s), newDeleteCommand(s))
}

func newList() client.ObjectList { return &harvesterv1.ScheduleVMBackupList{} }

func getSchedule(ctx context.Context, c *cluster.Client, name string) (*harvesterv1.ScheduleVMBackup, error) {
	schedule := &harvesterv1.ScheduleVMBackup{}
	key := client.ObjectKey{Namespace: c.Namespace, Name: name}
	if err := c.Get(ctx, key, schedule); err != nil {
		return nil, fmt.Errorf("get schedule %s: %w", key, err)
	}
	return schedule, nil
}

// listBackups returns the backups that a schedule made and that are still there, the newest first.
func listBackups(
	ctx context.Context, c *cluster.Client, s *harvesterv1.ScheduleVMBackup,
) ([]harvesterv1.VirtualMachineBackup, error) {
	var list harvesterv1.VirtualMachineBackupList
	err := c.List(ctx, &list, client.InNamespace(s.Namespace),
		client.MatchingLabels{harvesterv1.LabelSchedule: string(s.UID)})
	if err != nil {
		return nil, fmt.Errorf("list the backups of schedule %s/%s: %w", s.Namespace, s.Name, err)
	}
	slices.SortStableFunc(list.Items, func(a, b harvesterv1.VirtualMachineBackup) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	return list.Items, nil
}

func newListCommand(s *resource.Session) *cobra.Command {
	return s.ListCommand(resource.Listing{
		Short: "List schedules",
		Long: `List the schedules of machine backups. LAST GOOD is when the latest backup that can be restored
was complete, NEXT is when the next one is due, and FAILURES is how many backups have failed
since the last good one.

STATE is OK, Running, New (no run was due yet), Suspended, Overdue (the latest run made no backup,
or none came when one was due) or Failed; MESSAGE says why. -o wide shows all of the message, and
the location.`,
		Example: `  varve schedule list

  # Everywhere, with the whole reason of failures
  varve schedule list -A -o wide`,
		Noun:    "schedules",
		NewList: newList,
		Sort: func(list client.ObjectList) {
			slices.SortFunc(list.(*harvesterv1.ScheduleVMBackupList).Items,
				func(a, b harvesterv1.ScheduleVMBackup) int {
					return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
				})
		},
		Rows: func(
			_ context.Context, _ *cluster.Client, list client.ObjectList, wide bool, _ []client.ListOption,
		) (*output.Table, error) {
			return newTable(list.(*harvesterv1.ScheduleVMBackupList), wide, s.Now()), nil
		},
	})
}

// messageWidth is how much of a message the table shows, in columns.
const messageWidth = 60

func newTable(list *harvesterv1.ScheduleVMBackupList, wide bool, now time.Time) *output.Table {
	t := &output.Table{Header: []string{
		"NAME", "VM", "CRON", "TYPE", "RETAIN", "LAST GOOD", "NEXT", "FAILURES", "STATE", "MESSAGE",
	}}
	if wide {
		t.Header = append(t.Header, "LOCATION")
	}
	p := &output.Page{Now: now}
	for i := range list.Items {
		item := &list.Items[i]
		verdict := Judge(item, now)
		message := verdict.Message
		if !wide {
			message = human.Short(human.Line(message), messageWidth)
		}
		expression, zone := readTimes(item)
		row := []string{
			item.Name, item.Spec.VMBackupSpec.Source.Name, expression + " " + zone, backupType(item),
			fmt.Sprint(item.Spec.Retain), p.Timestamp(item.Status.LastSuccessfulTime), NextRun(item, now),
			fmt.Sprint(item.Status.Failure), string(verdict.State), message,
		}
		if wide {
			row = append(row, item.Annotations[harvesterv1.AnnotationLocation])
		}
		t.Add(row...)
	}
	return t
}

// backupType returns the type of a schedule's backups. The server fills in the default.
func backupType(s *harvesterv1.ScheduleVMBackup) string {
	if s.Spec.VMBackupSpec.Type == "" {
		return string(harvesterv1.Backup)
	}
	return string(s.Spec.VMBackupSpec.Type)
}

// readTimes returns a schedule's cron expression and the time zone in which it is read.
func readTimes(s *harvesterv1.ScheduleVMBackup) (expression, zone string) {
	zone = s.Annotations[harvesterv1.AnnotationTimeZone]
	times, err := cron.Parse(s.Spec.Cron, zone)
	if err != nil {
		return strings.TrimSpace(s.Spec.Cron), cmp.Or(zone, "UTC") // the condition Ready says what is wrong with it
	}
	return times.Expression(), times.Location().String()
}

// NextRun says when a schedule's next backup is due: "in 5h", or "" if none is.
func NextRun(s *harvesterv1.ScheduleVMBackup, now time.Time) string {
	next := s.Status.NextScheduleTime
	switch {
	case next == nil || s.Spec.Suspend || s.Status.Suspended:
		return ""
	case next.After(now):
		return "in " + human.Span(next.Sub(now))
	}
	return "due for " + human.Span(now.Sub(next.Time))
}
