package backup

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/errclass"
)

// ofUID makes a request count only for the object that was read. One of the same name that was created since then stays.
func ofUID(b *backupv1.VirtualMachineBackup) client.Preconditions {
	uid := b.UID
	return client.Preconditions{UID: &uid}
}

// isReady reports whether the endpoints of a backup in pull mode can be read.
func isReady(b *backupv1.VirtualMachineBackup) bool {
	return b.DeletionTimestamp == nil && !b.Status.Phase.Final() && meta.IsStatusConditionTrue(b.Status.Conditions, backupv1.ConditionReady)
}

// checkAlive returns why a backup that was seen can never be read any more, or nil.
func checkAlive(s *resource.Session, b *backupv1.VirtualMachineBackup) error {
	describe := s.CommandHint("backup describe "+b.Name) + " shows its disks and events"
	switch {
	case b.Status.Phase == backupv1.BackupFailed, b.Status.Phase == backupv1.BackupCopyFailed:
		return failure.New(describe, "backup %s failed: %s: %s", b.Name, b.Status.Reason, b.Status.Message)
	case b.DeletionTimestamp != nil || b.Status.Phase.Final():
		return &failure.Error{
			Err: errclass.Errorf(errclass.Expired, "backup %s has ended: %s", b.Name, phaseOf(b)), Code: errclass.ExitRefused, Hint: "make another backup",
		}
	}
	return nil
}

// untilReady waits until the endpoints of a backup can be read, and stores its last state in b.
func untilReady(s *resource.Session, c *cluster.Client, b *backupv1.VirtualMachineBackup) resource.WaitFunc {
	uid, name := b.UID, b.Name
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(b), &backupv1.VirtualMachineBackup{}, resource.NewBackups(),
			func(seen *backupv1.VirtualMachineBackup, exists bool) (bool, error) {
				if !exists || seen.UID != uid {
					return false, failure.New("", "backup %s was deleted", name)
				}
				show(progress.Report{Name: name, Phase: phaseOf(seen), Message: seen.Status.Message})
				seen.DeepCopyInto(b)
				return isReady(seen), checkAlive(s, seen)
			})
	}
}
