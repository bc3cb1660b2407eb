package schedule

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/cron"
)

// Limits of the API: maxFailure is at least 2, and less than retain.
const (
	leastMaxFailure   = 2
	mostRetain        = 250
	defaultRetain     = 8
	defaultMaxFailure = 4
)

// request is what the flags of `schedule create` say.
type request struct {
	machinebackup.Choices

	machine, cron, zone      string
	retain, maxFailure       int
	skipCronCheck, suspended bool
}

// check refuses flags that exclude each other, and values that the server refuses.
func (r *request) check() error {
	switch {
	case r.machine == "":
		return failure.Usage("--vm is missing: name the virtual machine that is backed up")
	case strings.TrimSpace(r.cron) == "":
		return failure.Usage("--cron is missing: give minute, hour, day of the month, month and day of the week, " +
			"such as \"0 1 * * *\"")
	case r.retain <= leastMaxFailure || r.retain > mostRetain:
		return failure.Usage("--retain %d: it must be from %d to %d", r.retain, leastMaxFailure+1, mostRetain)
	case r.maxFailure < leastMaxFailure || r.maxFailure >= r.retain:
		return failure.Usage("--max-failure %d: it must be from %d to %d, less than --retain",
			r.maxFailure, leastMaxFailure, r.retain-1)
	}
	if err := r.Check("backups"); err != nil {
		return err
	}
	return r.checkTimes()
}

// checkTimes refuses a cron expression that the controller would not go by.
func (r *request) checkTimes() error {
	if r.zone != "" && strings.Contains(r.cron, "TZ=") {
		return failure.Usage("--time-zone %s: --cron %q has a time zone already", r.zone, r.cron)
	}
	times, err := cron.Parse(r.cron, r.zone)
	if err != nil {
		return failure.Usage("--cron: %w", err)
	}
	if apart := times.Granularity(); apart < harvesterv1.LeastGranularity && !r.skipCronCheck {
		return failure.Usage("--cron %q: its times are %s apart, and backups must be an hour apart: choose others, "+
			"or allow it with --skip-cron-check", r.cron, human.Span(apart))
	}
	return nil
}

func newCreateCommand(s *resource.Session) *cobra.Command {
	var r request
	c := &cobra.Command{
		Use: "create NAME", Short: "Create a schedule for a virtual machine",
		Long: `Create a schedule: Varve backs up a virtual machine as a whole at the times of a cron expression,
as 'varve vm backup' does, and keeps the newest --retain backups that can be restored.

--cron has minute, hour, day of the month, month and day of the week, or is @hourly, @daily,
@weekly, @monthly or @yearly. The times are in UTC without --time-zone. They are an hour apart or
more, unless --skip-cron-check allows less.

After --max-failure failed backups in a row the schedule is suspended, and 'varve schedule resume'
continues it. Without the flag that is 4, or less if --retain is 4 or 3.`,
		Example: `  # At one in the night, the last 8
  varve schedule create nightly --vm web --cron "0 1 * * *" --time-zone Europe/Berlin

  # On Sundays, to another location, without a disk
  varve schedule create weekly --vm web --cron "30 3 * * 0" --retain 12 --location shelf --exclude scratch

  # Snapshots in the machine's own storage, during the day
  varve schedule create quick --vm web --cron "0 8-18 * * 1-5" --snapshot`,
		Args: cmdline.ExactArgs(1, "a name for the schedule"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("max-failure") {
				r.maxFailure = max(leastMaxFailure, min(r.maxFailure, r.retain-1))
			}
			if err := r.check(); err != nil {
				return err
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			key := client.ObjectKey{Namespace: c.Namespace, Name: r.machine}
			if err := c.Get(cmd.Context(), key, &kubevirtv1.VirtualMachine{}); err != nil {
				return fmt.Errorf("get virtual machine %s: %w", key, err)
			}
			schedule := r.newObject(c.Namespace, args[0])
			if err := c.Create(cmd.Context(), schedule); err != nil {
				return fmt.Errorf("create schedule %s/%s: %w", c.Namespace, args[0], err)
			}
			return output.PrintDone(cmd.OutOrStdout(), schedule, "created")
		},
	}
	c.Flags().StringVar(&r.machine, "vm", "", "the virtual machine to back up")
	c.Flags().StringVar(&r.cron, "cron", "", "when, as a cron expression such as \"0 1 * * *\"")
	c.Flags().StringVar(&r.zone, "time-zone", "", "the time zone of --cron, such as Europe/Berlin (default: UTC)")
	c.Flags().IntVar(&r.retain, "retain", defaultRetain, "how many backups stay")
	c.Flags().IntVar(&r.maxFailure, "max-failure", defaultMaxFailure,
		"how many backups may fail in a row before the schedule is suspended")
	r.AddFlags(c)
	c.Flags().BoolVar(&r.skipCronCheck, "skip-cron-check", false,
		"allow times that are less than an hour apart, or near those of other schedules")
	c.Flags().BoolVar(&r.suspended, "suspended", false, "make no backups until the schedule is resumed")
	s.CompleteFlag(c, "vm", resource.NewVMs)
	return c
}

func (r *request) newObject(namespace, name string) *harvesterv1.ScheduleVMBackup {
	schedule := &harvesterv1.ScheduleVMBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: r.Annotations()},
		Spec: harvesterv1.ScheduleVMBackupSpec{
			Cron: strings.TrimSpace(r.cron), Retain: r.retain, MaxFailure: r.maxFailure, Suspend: r.suspended,
			VMBackupSpec: r.Spec(r.machine),
		},
	}
	if r.zone != "" {
		schedule.Annotations[harvesterv1.AnnotationTimeZone] = r.zone
	}
	if r.skipCronCheck {
		schedule.Annotations[harvesterv1.AnnotationSkipCronCheck] = "enable"
	}
	return schedule
}
