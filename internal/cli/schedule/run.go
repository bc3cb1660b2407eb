package schedule

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/schedule"
)

func newRunCommand(s *resource.Session) *cobra.Command {
	var w resource.Waiting
	c := &cobra.Command{
		Use: "run NAME", Short: "Have a schedule make a backup now",
		Long: `Have a schedule make a backup now, besides its due times. The backup belongs to the schedule: it
counts for its retention, and its failure counts as that of every run. It begins within a minute
or two, because a schedule makes at most one backup a minute, or when a backup of the schedule that
runs has ended.

With --wait, the command succeeds only if the backup does. A backup that fails may be tried again;
--wait waits for the last attempt.`,
		Example:           `  varve schedule run nightly --wait`,
		Args:              cmdline.ExactArgs(1, "the name of a schedule"),
		ValidArgsFunction: s.CompleteArgs(newList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			o, err := getSchedule(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if err := checkRunnable(s, o); err != nil {
				return err
			}
			at := runTime(o, s.Now())
			if err := requestRun(cmd.Context(), c, o, at); err != nil {
				return err
			}
			done := "is to make a backup at " + output.FormatTime(at)
			if err := output.PrintDone(cmd.OutOrStdout(), o, done); err != nil || !w.Wait {
				return err
			}
			f := &runFollower{client: c, session: s, schedule: o, at: at}
			if err := w.RunEach(cmd.Context(), s, "the run of "+output.FormatTime(at)+" has ended",
				"schedule describe "+o.Name, f.untilEnded); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), human.Line(f.describeStored()))
			return err
		},
	}
	w.AddFlags(c, "the backup is ready, or no further attempt is made", 0)
	return c
}

// checkRunnable refuses a schedule that makes no backups.
func checkRunnable(s *resource.Session, o *harvesterv1.ScheduleVMBackup) error {
	if o.Spec.Suspend || o.Status.Suspended {
		return failure.New(s.CommandHint("schedule resume "+o.Name)+" resumes it",
			"schedule %s is suspended, and makes no backups", o.Name)
	}
	if _, err := schedule.ReadTimes(o); err != nil {
		return failure.New("", "schedule %s makes no backups as it is: %w", o.Name, err)
	}
	return nil
}

// runTime returns the time of a run that is asked for now: the present minute, or the one after the latest run, whose
// backup has the name of its minute. It is that of a run that was asked for by then and not dealt with.
func runTime(o *harvesterv1.ScheduleVMBackup, now time.Time) time.Time {
	at := now.UTC().Truncate(time.Minute)
	for _, last := range []*metav1.Time{o.Status.LastScheduleTime, o.Status.LastRequestedTime} {
		if last != nil && !last.Time.Before(at) {
			at = last.UTC().Truncate(time.Minute).Add(time.Minute)
		}
	}
	if asked := requestedTime(o); !asked.IsZero() && !asked.After(at) {
		return asked
	}
	return at
}

// requestRun asks for a run at a time.
func requestRun(ctx context.Context, c *cluster.Client, o *harvesterv1.ScheduleVMBackup, at time.Time) error {
	before := o.DeepCopy()
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[harvesterv1.AnnotationRunAt] = at.UTC().Format(time.RFC3339)
	if err := c.Patch(ctx, o, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("ask schedule %s/%s for a run: %w", o.Namespace, o.Name, err)
	}
	return nil
}

// runFollower waits for the end of a run.
type runFollower struct {
	client   *cluster.Client
	session  *resource.Session
	schedule *harvesterv1.ScheduleVMBackup
	// at is the time that was asked for, and then that of the run: one that was due has taken its place if both began
	// together.
	at time.Time
	// began says that the run was seen.
	began bool
	// backup is that of the latest attempt. Its name is empty before the first one.
	backup harvesterv1.VirtualMachineBackup
}

// untilEnded waits until the run has ended, and shows the progress of its backups. It fails if the run made no backup
// that can be restored.
func (f *runFollower) untilEnded(ctx context.Context, show func(progress.Report)) error {
	for {
		run, err := f.nextStep(ctx, show)
		if err != nil {
			return err
		}
		if run.Result == harvesterv1.RunSucceeded {
			return f.readBackup(ctx, run.Backup)
		}
		if hasEnded(run) {
			return failure.New(f.session.CommandHint("schedule describe "+f.schedule.Name)+" shows its runs and events",
				"%s", describeRun(run))
		}
		f.backup = harvesterv1.VirtualMachineBackup{}
		f.backup.Namespace, f.backup.Name = f.schedule.Namespace, run.Backup
		// Whether the run has ended with its backup is the schedule's to say: it may try again.
		if _, err := machinebackup.FollowUntilEnded(ctx, f.client, &f.backup, show); err != nil {
			return fmt.Errorf("follow backup %s: %w", run.Backup, err)
		}
	}
}

// readBackup reads the backup of the run. One that is gone already has a name alone.
func (f *runFollower) readBackup(ctx context.Context, name string) error {
	f.backup = harvesterv1.VirtualMachineBackup{}
	f.backup.Namespace, f.backup.Name = f.schedule.Namespace, name
	err := f.client.Get(ctx, client.ObjectKeyFromObject(&f.backup), &f.backup)
	if err != nil && cluster.Classify(err) != cluster.NotFound {
		return fmt.Errorf("read backup %s: %w", name, err)
	}
	return nil
}

// describeStored says in one line what the run has stored.
func (f *runFollower) describeStored() string {
	if !f.backup.IsReady() {
		return "machine backup " + f.backup.Name + " was ready, and is not there any more"
	}
	return machinebackup.DescribeStored(&f.backup)
}

// nextStep waits until the run has ended or has another backup than the one that was followed.
func (f *runFollower) nextStep(
	ctx context.Context, show func(progress.Report),
) (step *harvesterv1.ScheduledRun, err error) {
	o := f.schedule
	err = cluster.Follow(ctx, f.client, client.ObjectKeyFromObject(o), &harvesterv1.ScheduleVMBackup{}, newList(),
		func(seen *harvesterv1.ScheduleVMBackup, exists bool) (bool, error) {
			if !exists || seen.UID != o.UID {
				return false, failure.New("", "schedule %s was deleted before the run ended", o.Name)
			}
			run, err := f.findRun(seen)
			switch {
			case err != nil:
				return false, err
			case run == nil:
				show(progress.Report{Name: o.Name, Phase: "Pending", Message: "it has not begun yet"})
				return false, nil
			case run.Result == harvesterv1.RunRetrying:
				show(progress.Report{Name: o.Name, Phase: "Retrying", Message: describeRun(run)})
				return false, nil
			}
			step = run.DeepCopy()
			return hasEnded(run) || run.Backup != f.backup.Name, nil
		})
	return step, err
}

// findRun returns the run, or nil if it has not begun. It fails if there will be none.
func (f *runFollower) findRun(o *harvesterv1.ScheduleVMBackup) (*harvesterv1.ScheduledRun, error) {
	if !f.began && !isDealtWith(o, f.at) {
		asked := o.Annotations[harvesterv1.AnnotationRunAt]
		switch {
		case o.Spec.Suspend || o.Status.Suspended:
			return nil, failure.New("", "schedule %s was suspended before the run began", o.Name)
		case asked != output.FormatTime(f.at):
			return nil, failure.New("", "the run of %s was not made: somebody has asked schedule %s for another one, or "+
				"for none", output.FormatTime(f.at), o.Name)
		}
		return nil, nil
	}
	i := slices.IndexFunc(o.Status.Runs, func(r harvesterv1.ScheduledRun) bool { return r.Time.Time.Equal(f.at) })
	if i < 0 { // one of several that were skipped
		i = slices.IndexFunc(o.Status.Runs, func(r harvesterv1.ScheduledRun) bool {
			return r.LastTime != nil && !f.at.Before(r.Time.Time) && !f.at.After(r.LastTime.Time)
		})
	}
	if i < 0 && !f.began && len(o.Status.Runs) > 0 {
		i = 0 // one that was due at the same time, and that has another time
	}
	if i < 0 {
		return nil, failure.New("", "schedule %s has no record of the run of %s any more", o.Name, output.FormatTime(f.at))
	}
	run := &o.Status.Runs[i]
	if !f.began && run.LastTime == nil {
		f.at = run.Time.Time
	}
	f.began = true
	return run, nil
}

// isDealtWith says whether the controller has dealt with the run that was asked for at a time.
func isDealtWith(o *harvesterv1.ScheduleVMBackup, at time.Time) bool {
	last := o.Status.LastRequestedTime
	return last != nil && last.Time.Equal(at)
}
