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
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/schedule"
)

// Limits of the API: maxFailure is at least 2, and less than retain.
const (
	leastMaxFailure   = 2
	leastRetain       = 2
	mostRetain        = 250
	defaultRetain     = 8
	defaultMaxFailure = 4
)

// request is what the flags of `schedule create` say.
type request struct {
	machinebackup.Choices

	machine, cron, zone, jitter     string
	retain, maxFailure              int
	keeps                           keepFlags
	skipCronCheck, suspended, adopt bool
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
	if r.zone != "" && strings.Contains(r.cron, "TZ=") {
		return failure.Usage("--time-zone %s: --cron %q has a time zone already", r.zone, r.cron)
	}
	return checkRules(r.newObject("", ""))
}

// asFlags has the names of flags for those of fields and annotations.
var asFlags = strings.NewReplacer(
	"set the annotation "+harvesterv1.AnnotationSkipCronCheck+` to "enable"`, "allow it with --skip-cron-check",
	"the annotation "+annotationPrefix, "--", "spec.cron", "--cron",
)

// checkRules refuses times and rules of retention that the controller would not go by.
func checkRules(s *harvesterv1.ScheduleVMBackup) error {
	times, err := schedule.ReadTimes(s)
	if err == nil {
		_, err = schedule.ReadPolicy(s, times.Location())
	}
	if err != nil {
		return failure.Usage("%s", asFlags.Replace(err.Error()))
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
more, unless --skip-cron-check allows less. With --jitter, each run begins up to so much later,
always the same for a schedule, so that not all schedules begin at once.

--keep-hourly N also keeps the newest backup of each of the N newest hours that have one, and
--keep-daily to --keep-yearly do the same. --keep-within keeps all in the span before the newest.
The rules add up. 'varve schedule retention' shows what they keep.

--adopt takes over the backups of deleted schedules of the same name and machine: the new schedule
removes them as it does its own.

After --max-failure failed backups in a row the schedule is suspended, and 'varve schedule resume'
continues it. Without the flag that is 4, or less if --retain is 4 or 3.`,
		Example: `  # At one in the night, the last 8
  varve schedule create nightly --vm web --cron "0 1 * * *" --time-zone Europe/Berlin

  # Also one of each of the last 14 days and 12 months
  varve schedule create nightly --vm web --cron "0 1 * * *" --keep-daily 14 --keep-monthly 12

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
			created := r.newObject(c.Namespace, args[0])
			if err := c.Create(cmd.Context(), created); err != nil {
				return fmt.Errorf("create schedule %s/%s: %w", c.Namespace, args[0], err)
			}
			return output.PrintDone(cmd.OutOrStdout(), created, "created")
		},
	}
	c.Flags().StringVar(&r.machine, "vm", "", "the virtual machine to back up")
	c.Flags().StringVar(&r.cron, "cron", "", "when, as a cron expression such as \"0 1 * * *\"")
	c.Flags().StringVar(&r.zone, "time-zone", "", "the time zone of --cron, such as Europe/Berlin (default: UTC)")
	c.Flags().StringVar(&r.jitter, "jitter", "", "how much later than they are due runs may begin, such as 30m")
	c.Flags().IntVar(&r.retain, "retain", defaultRetain, "how many backups stay")
	r.keeps.addFlags(c)
	c.Flags().IntVar(&r.maxFailure, "max-failure", defaultMaxFailure,
		"how many backups may fail in a row before the schedule is suspended")
	r.AddFlags(c)
	c.Flags().BoolVar(&r.skipCronCheck, "skip-cron-check", false,
		"allow times that are less than an hour apart, or near those of other schedules")
	c.Flags().BoolVar(&r.suspended, "suspended", false, "make no backups until the schedule is resumed")
	c.Flags().BoolVar(&r.adopt, "adopt", false,
		"take over the backups of deleted schedules of the same name and machine")
	s.CompleteFlag(c, "vm", resource.NewVMs)
	return c
}

func (r *request) newObject(namespace, name string) *harvesterv1.ScheduleVMBackup {
	s := &harvesterv1.ScheduleVMBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: r.Annotations()},
		Spec: harvesterv1.ScheduleVMBackupSpec{
			Cron: strings.TrimSpace(r.cron), Retain: r.retain, MaxFailure: r.maxFailure, Suspend: r.suspended,
			VMBackupSpec: r.Spec(r.machine),
		},
	}
	r.keeps.applyTo(s)
	for annotation, value := range map[string]string{
		harvesterv1.AnnotationTimeZone: r.zone, harvesterv1.AnnotationJitter: r.jitter,
	} {
		if value != "" {
			s.Annotations[annotation] = value
		}
	}
	if r.adopt {
		s.Annotations[harvesterv1.AnnotationAdopt] = "true"
	}
	if r.skipCronCheck {
		s.Annotations[harvesterv1.AnnotationSkipCronCheck] = "enable"
	}
	return s
}
