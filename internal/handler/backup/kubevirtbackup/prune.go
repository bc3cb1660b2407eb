package kubevirtbackup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/handler/machine/attachment"
	"github.com/varvebackup/varve/internal/handler/machine/mount"
	"github.com/varvebackup/varve/internal/handler/turns"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// unfinishedInterval is the pause before the next part of a directory that is removed in parts.
const unfinishedInterval = 10 * time.Millisecond

// pruneNode removes what the backup leaves on the node: checkpoints that no tracker names any more (the base after a
// success, the new one after a failure), the job's state in the launcher, and an unfinished directory on the
// target.
func (r *Reconciler) pruneNode(ctx context.Context, s *gathered) (ctrl.Result, error) {
	if _, gone := guestGone(s.backup, s.instance, s.state); !gone {
		if s.launcher == nil || s.state == nil || s.err != nil {
			return ctrl.Result{RequeueAfter: retryInterval}, nil //nolint:nilerr // the launcher's client reports its silence
		}
		if err := r.pruneLauncher(ctx, s); err != nil {
			return ctrl.Result{}, err
		}
	}
	// If the guest is gone, its checkpoints went with the domain or are collected after its next start.
	err := r.removePartial(ctx, s)
	silent := " " + backupstate.TargetNotResponding(s.backup.Spec.PVCName)
	switch {
	case errors.Is(err, mount.ErrUnfinished):
		return ctrl.Result{RequeueAfter: unfinishedInterval}, nil
	case errors.Is(err, mount.ErrNotResponding):
		if !strings.Contains(s.backup.Status.Message, silent) {
			s.backup.Status.Message += silent
		}
		// The controller's deadline limits the wait.
		return ctrl.Result{RequeueAfter: retryInterval}, r.writeStatus(ctx, s)
	case err != nil:
		return ctrl.Result{}, err
	}
	s.backup.Status.Message = strings.Replace(s.backup.Status.Message, silent, "", 1)
	s.backup.Status.Phase = backupv1.BackupPruned
	return ctrl.Result{}, r.writeStatus(ctx, s)
}

func (r *Reconciler) pruneLauncher(ctx context.Context, s *gathered) error {
	defer s.launcher.LockCheckpoints(ctx)()
	uid := string(s.backup.UID)
	if job := s.job(); job != nil && job.GetPhase() != launcherpb.Backup_DONE && job.GetPhase() != launcherpb.Backup_FAILED {
		// The controller gave up the backup while it ran. Its files and its checkpoint must not appear later.
		if err := abortJob(ctx, s); err != nil {
			return err
		}
		return errors.New("the abandoned job is still ending")
	}
	if err := r.Keeper.Prune(ctx, s.launcher, types.NamespacedName{Namespace: s.backup.Namespace, Name: s.backup.Status.SourceName}); err != nil {
		return err
	}
	if _, err := s.launcher.RPC().ForgetBackup(ctx, &launcherpb.ForgetBackupRequest{Uid: uid}); err != nil {
		return fmt.Errorf("forget the job: %w", err)
	}
	return nil
}

// removePartial deletes the unfinished directory through the attachment pod's mount, which does not need the
// launcher. After a success there is none, because it was renamed. If the claim is no longer on this node, nobody
// can remove the directory. The message of a failed backup then says so, and whoever looks at the claim later finds
// a directory that ends in ".partial".
func (r *Reconciler) removePartial(ctx context.Context, s *gathered) error {
	b := s.backup
	if b.Status.Directory == "" {
		return nil
	}
	source, err := r.findTarget(ctx, b)
	if err == nil {
		turns.Outside(ctx, func() { err = r.Partial.RemovePartial(source, b.Status.Directory) })
	}
	if errors.Is(err, mount.ErrNotAttached) || errors.Is(err, attachment.ErrForeign) {
		if b.Status.Result == backupv1.BackupUnsuccessful || b.Spec.IsPull() {
			b.Status.Message += " " + backupstate.PartialFilesMayStay(b.Status.Directory+layout.PartialSuffix, b.Spec.PVCName)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove partial files: %w", err)
	}
	return nil
}

// findTarget returns where the kubelet mounted the backup's claim for its attachment pod.
func (r *Reconciler) findTarget(ctx context.Context, b *backupv1.VirtualMachineBackup) (mount.Source, error) {
	return attachment.Find(ctx, r.Live, r.NodeName, attachment.Volume{
		Namespace: b.Namespace, Instance: b.Status.SourceName, InstanceUID: b.Status.InstanceUID,
		Name: layout.BackupUtilityVolume(b.UID), Claim: b.Spec.PVCName,
	})
}
