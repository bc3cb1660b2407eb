package backup

import (
	"context"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// finishBackup says that the data of a backup was read: it deletes the backup, which must be Ready at that moment, waits
// until it is gone, and checks that the tracker has moved.
func finishBackup(ctx context.Context, s *resource.Session, c *cluster.Client, b *backupv1.VirtualMachineBackup, show func(progress.Report)) error {
	for {
		if err := untilReady(s, c, b)(ctx, show); err != nil {
			return fmt.Errorf("finish backup %s: %w", b.Name, err)
		}
		// A backup that is not Ready would be aborted. So delete the one that was seen, in the state in which it was seen.
		version := b.ResourceVersion
		condition := ofUID(b)
		condition.ResourceVersion = &version
		err := c.Delete(ctx, b, condition)
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("finish backup %s: %w", b.Name, err)
		}
	}
	if err := untilEnded(s, c, b)(ctx, show); err != nil {
		return err
	}
	return checkTracker(ctx, s, c, b)
}

// untilEnded waits until a backup that was deleted is gone.
func untilEnded(s *resource.Session, c *cluster.Client, b *backupv1.VirtualMachineBackup) resource.WaitFunc {
	uid, name := b.UID, b.Name
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(b), &backupv1.VirtualMachineBackup{}, resource.NewBackups(),
			func(seen *backupv1.VirtualMachineBackup, exists bool) (bool, error) {
				if !exists || seen.UID != uid {
					return true, nil
				}
				show(progress.Report{Name: name, Phase: "Finishing", Message: seen.Status.Message + " (" + phaseOf(seen) + ")"})
				if p := seen.Status.Phase; p == backupv1.BackupFailed || p == backupv1.BackupCopyFailed {
					return false, notMoved(s, seen, fmt.Sprintf("%s: %s", seen.Status.Reason, seen.Status.Message))
				}
				return false, nil
			})
	}
}

// notMoved is the error for a backup whose data is here, and whose tracker stayed where it was.
func notMoved(s *resource.Session, b *backupv1.VirtualMachineBackup, why string) error {
	return failure.New(s.CommandHint("tracker describe "+b.Spec.TrackerName())+" shows what the next backup starts from",
		"the data of backup %s is here, but the backup did not succeed, and its tracker did not move: %s", b.Name, why)
}

// checkTracker checks that the next backup starts from the checkpoint of this one.
func checkTracker(ctx context.Context, s *resource.Session, c *cluster.Client, b *backupv1.VirtualMachineBackup) error {
	if b.Spec.TrackerName() == "" || b.Status.CheckpointName == "" {
		return nil
	}
	var tracker backupv1.VirtualMachineBackupTracker
	key := client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.TrackerName()}
	if err := c.Get(ctx, key, &tracker); err != nil {
		return fmt.Errorf("get tracker %s: %w", key, err)
	}
	if latest := tracker.Status.LatestCheckpoint; latest == nil || latest.Name != b.Status.CheckpointName {
		name := "none"
		if latest != nil {
			name = latest.Name
		}
		return notMoved(s, b, fmt.Sprintf("its latest checkpoint is %s and not %s", name, b.Status.CheckpointName))
	}
	return nil
}

// printUnfinished says what is left to do after a pull without --finish.
func printUnfinished(w io.Writer, s *resource.Session, b *backupv1.VirtualMachineBackup) error {
	_, err := fmt.Fprintf(w, "The backup goes on until it is deleted, or fails at %s. %s says that its data was read%s.\n",
		output.FormatTime(endOf(b)), s.CommandHint("backup delete "+b.Name), movesTracker(b))
	return err
}

func movesTracker(b *backupv1.VirtualMachineBackup) string {
	if b.Spec.TrackerName() == "" {
		return ""
	}
	return ", and moves tracker " + b.Spec.TrackerName() + ", so that the next backup starts from here"
}
