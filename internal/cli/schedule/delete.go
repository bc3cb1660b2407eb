package schedule

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/schedule"
)

func newDeleteCommand(s *resource.Session) *cobra.Command {
	backups := false
	c := s.DeleteCommand(resource.Deletion{
		Noun: "schedule", Argument: "the name of a schedule",
		Short: "Delete schedules, with or without their backups",
		Long: `Delete schedules. Their backups stay, until 'varve vm delete-backup' deletes them or a schedule of
the same name and machine that is created with --adopt removes them. A backup that runs goes on.

--backups deletes the backups first, with all that they have stored, and waits until they are gone,
as with --wait. For that it suspends the schedule; a backup that runs is canceled. Pinned backups
stay. If the command is interrupted, run it again: it goes on with the rest.`,
		Example: `  varve schedule delete nightly

  # With all backups that are not pinned
  varve schedule delete nightly --backups --timeout 1h`,
		Object: func() client.Object { return &harvesterv1.ScheduleVMBackup{} }, NewList: newList,
		State: func(client.Object) (string, string) { return string(Deleting), "it is being deleted" },
		Prepare: func(cmd *cobra.Command, c *cluster.Client, o client.Object, w *resource.Waiting) error {
			if by := metav1.GetControllerOf(o); by != nil {
				return failure.New("", "schedule %s is made again by %s %s: take the label from the machine, or suspend the "+
					"schedule", o.GetName(), by.Kind, by.Name)
			}
			if !backups {
				return nil
			}
			return w.Run(cmd.Context(), s, "the backups of schedule "+o.GetName()+" are gone",
				"schedule describe "+o.GetName(), untilBackupsGone(cmd, c, o.(*harvesterv1.ScheduleVMBackup)))
		},
		Kept: func(ctx context.Context, c *cluster.Client, o client.Object) (string, error) {
			left, err := listBackups(ctx, c, o.(*harvesterv1.ScheduleVMBackup))
			if err != nil {
				return "", err
			}
			return describeKept(s, o.(*harvesterv1.ScheduleVMBackup), left), nil
		},
	})
	c.Flags().BoolVar(&backups, "backups", false, "first delete the backups that are not pinned, and wait for it")
	check := c.PreRunE
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if backups {
			if err := c.Flags().Set("wait", "true"); err != nil {
				return fmt.Errorf("wait for the backups: %w", err)
			}
		}
		return check(c, args)
	}
	return c
}

// describeKept says which backups of a schedule outlive it, and what to do with them.
func describeKept(
	s *resource.Session, o *harvesterv1.ScheduleVMBackup, backups []harvesterv1.VirtualMachineBackup,
) string {
	if len(backups) == 0 {
		return "schedule " + o.Name + " has no backups left"
	}
	verb := "stay"
	if len(backups) == 1 {
		verb = "stays"
	}
	text := fmt.Sprintf("%s of schedule %s %s", human.Count(len(backups), "backup"), o.Name, verb)
	var pinned []string
	for i := range backups {
		if schedule.IsPinned(&backups[i]) {
			pinned = append(pinned, backups[i].Name)
		}
	}
	if len(pinned) > 0 {
		text += "; pinned: " + strings.Join(pinned, ", ")
	}
	return text + fmt.Sprintf("\n%s lists what stays, %s removes it, %s takes it over",
		s.CommandHint("vm backups -l "+harvesterv1.LabelSchedule+"="+string(o.UID)),
		s.CommandHint("vm delete-backup NAME"),
		s.CommandHint("schedule create "+o.Name+" --vm "+o.Spec.VMBackupSpec.Source.Name+" --adopt"))
}

// untilBackupsGone suspends a schedule, deletes its backups, but for those that are pinned, and waits until they are
// gone.
func untilBackupsGone(
	cmd *cobra.Command, c *cluster.Client, o *harvesterv1.ScheduleVMBackup,
) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) (err error) {
		if !o.Spec.Suspend {
			before := o.DeepCopy()
			o.Spec.Suspend = true
			if err := c.Patch(ctx, o, client.MergeFrom(before)); err != nil {
				return fmt.Errorf("suspend it: %w", err)
			}
		}
		defer func() {
			if err != nil {
				err = fmt.Errorf("%w; schedule %s is suspended now: run the command again, or resume it", err, o.Name)
			}
		}()
		// A backup that is being made now comes before the status says so, and none comes after it.
		if err := untilSuspended(c, o)(ctx, show); err != nil {
			return err
		}
		for {
			backups, err := listBackups(ctx, c, o)
			if err != nil {
				return err
			}
			going, changed, err := deleteUnpinned(ctx, cmd, c, backups)
			if err != nil || len(going) == 0 && !changed {
				return err
			}
			for _, b := range going {
				if err := machinebackup.UntilGone(c, b)(ctx, show); err != nil {
					return err
				}
			}
		}
	}
}

// untilSuspended waits until the controller has suspended a schedule.
func untilSuspended(c *cluster.Client, o *harvesterv1.ScheduleVMBackup) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(o), &harvesterv1.ScheduleVMBackup{}, newList(),
			func(seen *harvesterv1.ScheduleVMBackup, exists bool) (bool, error) {
				switch {
				case !exists || seen.UID != o.UID:
					return false, failure.New("", "schedule %s was deleted meanwhile, and not its backups", o.Name)
				case !seen.Spec.Suspend:
					return false, failure.New("", "schedule %s was resumed meanwhile", o.Name)
				case seen.Status.Suspended:
					return true, nil
				}
				show(progress.Report{
					Name: o.Name, Phase: "Suspending", Message: "no controller has dealt with it yet",
				})
				return false, nil
			})
	}
}

// deleteUnpinned deletes the backups that a schedule made and that are not pinned. It returns those that are to go, and
// whether others have changed since they were read, so that they have to be read anew.
func deleteUnpinned(
	ctx context.Context, cmd *cobra.Command, c *cluster.Client, backups []harvesterv1.VirtualMachineBackup,
) (going []*harvesterv1.VirtualMachineBackup, changed bool, err error) {
	for i := range backups {
		b := &backups[i]
		if !schedule.IsScheduled(b) || schedule.IsPinned(b) && b.DeletionTimestamp == nil {
			continue
		}
		if b.DeletionTimestamp != nil {
			going = append(going, b)
			continue
		}
		// With its version, one that somebody has pinned since it was read stays.
		uid, version := b.UID, b.ResourceVersion
		err := c.Delete(ctx, b.DeepCopy(), client.Preconditions{UID: &uid, ResourceVersion: &version})
		switch kind := cluster.Classify(err); {
		case err == nil:
			going = append(going, b)
			if err := output.PrintDone(cmd.OutOrStdout(), b, "deleted"); err != nil {
				return nil, false, err
			}
		case kind == cluster.NotFound:
		case kind == cluster.Conflict:
			changed = true
		default:
			return nil, false, fmt.Errorf("delete backup %s: %w", b.Name, err)
		}
	}
	return going, changed, nil
}
