package schedule

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/schedule"
)

func newDescribeCommand(s *resource.Session) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe NAME", Short: "Show a schedule with its last runs and its backups",
		Long: `Show a schedule: what it backs up and when, its state and why it is so, its last runs and what
became of them, its backups with their sizes, its conditions and recent events.`,
		Example: `  varve schedule describe nightly

  # The API object
  varve schedule describe nightly -o yaml`,
		Args: cmdline.ExactArgs(1, "the name of a schedule"), ValidArgsFunction: s.CompleteArgs(newList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			schedule, err := getSchedule(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, schedule)
			}
			backups, err := listBackups(cmd.Context(), c, schedule)
			if err != nil {
				return err
			}
			events, err := resource.ReadEvents(cmd.Context(), c, schedule.Namespace, schedule.UID)
			if err != nil {
				return err
			}
			p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
			writeSchedule(p, schedule)
			writeRuns(p, schedule.Status.Runs)
			writeBackups(p, backups)
			writeConditions(p, schedule)
			resource.WriteEvents(p, events)
			return p.Err
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

func writeSchedule(p *output.Page, s *harvesterv1.ScheduleVMBackup) {
	expression, zone := readTimes(s)
	verdict := Judge(s, p.Now)
	next := ""
	if when := NextRun(s, p.Now); when != "" {
		next = output.FormatTime(s.Status.NextScheduleTime.Time) + " (" + when + ")"
	}
	freeze, unchecked, deadline, adopts := "", "", "", ""
	if s.Annotations[harvesterv1.AnnotationFreeze] == "false" {
		freeze = "no"
	}
	if s.Annotations[harvesterv1.AnnotationSkipCronCheck] == "enable" {
		unchecked = "no"
	}
	if s.Annotations[harvesterv1.AnnotationAdopt] == "true" {
		adopts = "yes"
	}
	if d := s.Spec.VMBackupSpec.FSFreezeDeadline; d != nil {
		deadline = d.Duration.String()
	}
	p.Fields(
		"Name", s.Name,
		"Namespace", s.Namespace,
		"Created", p.Moment(s.CreationTimestamp.Time),
		"Labels", output.FormatLabels(s.Labels),
		"Machine", s.Spec.VMBackupSpec.Source.Name,
		"Cron", expression,
		"Time zone", zone,
		"Times checked", unchecked,
		"Jitter", describeJitter(s),
		"Type", backupType(s),
		"Location", s.Annotations[harvesterv1.AnnotationLocation],
		"Left out", s.Annotations[harvesterv1.AnnotationExcludeVolumes],
		"Freezes the guest", freeze,
		"Freeze deadline", deadline,
		"Retains", human.Count(s.Spec.Retain, "backup"),
		"Also keeps", describeKeepRules(s),
		"Adopts", adopts,
		"Suspended after", human.Count(s.Spec.MaxFailure, "failure")+" in a row",
		"State", string(verdict.State),
		"Message", verdict.Message,
		"Last due", p.Timestamp(s.Status.LastScheduleTime),
		"Last good", p.Timestamp(s.Status.LastSuccessfulTime),
		"Next", next,
		"Requested", output.FormatTime(requestedTime(s)),
		"Failures in a row", fmt.Sprint(s.Status.Failure),
	)
}

// describeJitter says how long after they are due a schedule's runs may begin, and how long after it they do.
func describeJitter(s *harvesterv1.ScheduleVMBackup) string {
	text := s.Annotations[harvesterv1.AnnotationJitter]
	if times, err := schedule.ReadTimes(s); err == nil && text != "" {
		text += ", its runs begin " + human.Span(times.Delay) + " after they are due"
	}
	return text
}

// requestedTime returns the time of a run that a user has asked for and that was not dealt with, or zero.
func requestedTime(s *harvesterv1.ScheduleVMBackup) time.Time {
	at, err := time.Parse(time.RFC3339, s.Annotations[harvesterv1.AnnotationRunAt])
	if err != nil {
		return time.Time{}
	}
	at = at.UTC().Truncate(time.Minute)
	if isDealtWith(s, at) || at.Before(s.CreationTimestamp.Truncate(time.Minute)) {
		return time.Time{}
	}
	return at
}

func writeRuns(p *output.Page, runs []harvesterv1.ScheduledRun) {
	t := &output.Table{Header: []string{"DUE", "RESULT", "BACKUP", "MESSAGE"}}
	for i := range runs {
		r := &runs[i]
		result, message := string(r.Result), describeReason(r)
		if r.Attempts > 1 {
			result += fmt.Sprintf(" (%d attempts)", r.Attempts)
		}
		if r.Result == harvesterv1.RunRetrying && r.RetryTime != nil {
			message = strings.TrimPrefix(message+"; tried again at "+output.FormatTime(r.RetryTime.Time), "; ")
		}
		t.Add(describeDue(r), result, r.Backup, message)
	}
	p.Section("Last runs", t, "none yet")
}

func writeBackups(p *output.Page, backups []harvesterv1.VirtualMachineBackup) {
	t := &output.Table{Header: []string{"NAME", "READY", "DISKS", "SIZE", "CHANGED", "AGE"}}
	for i := range backups {
		b := &backups[i]
		size, changed := machinebackup.StoredBytes(b)
		changedText := human.Bytes(changed)
		if b.Spec.Type == harvesterv1.Snapshot {
			changedText = ""
		}
		t.Add(b.Name, describeReadiness(b), fmt.Sprint(len(b.Status.VolumeBackups)), human.Bytes(size), changedText,
			p.Age(b.CreationTimestamp.Time))
	}
	p.Section("Backups", t, "none")
}

// describeReadiness says whether a backup can be restored.
func describeReadiness(b *harvesterv1.VirtualMachineBackup) string {
	text := "not yet"
	switch {
	case b.DeletionTimestamp != nil:
		text = "is being deleted"
	case b.IsReady():
		text = "yes"
	case b.HasFailed():
		text = "failed"
	}
	if b.Annotations[harvesterv1.AnnotationPinned] == "true" {
		text += ", pinned"
	}
	return text
}

func writeConditions(p *output.Page, s *harvesterv1.ScheduleVMBackup) {
	t := &output.Table{Header: []string{"CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, c := range s.Status.Conditions {
		t.Add(string(c.Type), string(c.Status), c.Reason, c.Message)
	}
	p.Section("Conditions", t, "")
}
