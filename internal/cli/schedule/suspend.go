package schedule

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// resumeTimeout is the default of --timeout, enough for the removal of failed backups and a look at the location.
const resumeTimeout = 5 * time.Minute

func newSuspendCommand(s *resource.Session) *cobra.Command {
	return &cobra.Command{
		Use: "suspend NAME", Short: "Suspend a schedule",
		Long: `Suspend a schedule: it makes no backups until 'varve schedule resume'. A backup that runs goes
on, and all backups stay.`,
		Example:           `  varve schedule suspend nightly`,
		Args:              cmdline.ExactArgs(1, "the name of a schedule"),
		ValidArgsFunction: s.CompleteArgs(newList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, _, err := setSuspend(cmd, s, args[0], true)
			return err
		},
	}
}

func newResumeCommand(s *resource.Session) *cobra.Command {
	var w resource.Waiting
	c := &cobra.Command{
		Use: "resume NAME", Short: "Resume a schedule that is suspended",
		Long: `Resume a schedule that is suspended, by its user or after too many failures. The backups that
failed are removed. Times that were due meanwhile are not made up for.

--wait waits until the schedule is resumed, and shows why it is not yet, such as a location that
does not answer.`,
		Example:           `  varve schedule resume nightly --wait`,
		Args:              cmdline.ExactArgs(1, "the name of a schedule"),
		ValidArgsFunction: s.CompleteArgs(newList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, schedule, err := setSuspend(cmd, s, args[0], false)
			if err != nil || !w.Wait {
				return err
			}
			err = w.Run(cmd.Context(), s, "schedule "+args[0]+" is resumed", "schedule describe "+args[0],
				untilResumed(c, schedule))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), describeResumed(schedule, s.Now()))
			return err
		},
	}
	w.AddFlags(c, "the schedule is resumed", resumeTimeout)
	return c
}

// setSuspend writes whether a schedule is to be suspended, if it is not so already, and says so.
func setSuspend(
	cmd *cobra.Command, s *resource.Session, name string, suspend bool,
) (*cluster.Client, *harvesterv1.ScheduleVMBackup, error) {
	c, err := s.Connect()
	if err != nil {
		return nil, nil, err
	}
	schedule, err := getSchedule(cmd.Context(), c, name)
	if err != nil {
		return nil, nil, err
	}
	verb, done := "resume", "resumed"
	if suspend {
		verb, done = "suspend", "suspended"
	}
	if schedule.Spec.Suspend == suspend {
		done += " already"
	} else {
		before := schedule.DeepCopy()
		schedule.Spec.Suspend = suspend
		if err := c.Patch(cmd.Context(), schedule, client.MergeFrom(before)); err != nil {
			return nil, nil, fmt.Errorf("%s schedule %s/%s: %w", verb, c.Namespace, name, err)
		}
	}
	return c, schedule, output.PrintDone(cmd.OutOrStdout(), schedule, done)
}

// untilResumed waits until a schedule makes backups again, and stores its last state in it.
func untilResumed(c *cluster.Client, schedule *harvesterv1.ScheduleVMBackup) resource.WaitFunc {
	uid := schedule.UID
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(schedule), &harvesterv1.ScheduleVMBackup{}, newList(),
			func(seen *harvesterv1.ScheduleVMBackup, exists bool) (bool, error) {
				if !exists || seen.UID != uid {
					return false, failure.New("", "schedule %s was deleted", schedule.Name)
				}
				seen.DeepCopyInto(schedule)
				condition := findCondition(seen, harvesterv1.ConditionBackupSuspend)
				why := cmp.Or(condition.Message, condition.Reason, "no controller has dealt with it yet")
				if seen.Spec.Suspend {
					return false, failure.New("", "schedule %s was suspended again: %s", seen.Name, why)
				}
				if !seen.Status.Suspended {
					show(progress.Report{Name: seen.Name, Phase: "Resumed"})
					return true, nil
				}
				show(progress.Report{Name: seen.Name, Phase: "Suspended", Message: why})
				return false, nil
			})
	}
}

func describeResumed(s *harvesterv1.ScheduleVMBackup, now time.Time) string {
	text := "schedule " + s.Name + " is resumed"
	if next := s.Status.NextScheduleTime; next != nil && next.After(now) {
		text += ": the next backup is due at " + output.FormatTime(next.Time)
	}
	return text
}
