package instance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

// endStrayBackup aborts a backup that the launcher runs and that no longer holds the instance: the controller has given it up
// while no handler ran here, or somebody removed its finalizer. One in pull mode would go on for ever.
func (r *Reconciler) endStrayBackup(ctx context.Context, vmi *kubevirtv1.VirtualMachineInstance, l *launcherclient.Client) error {
	job := l.Snapshot().State.GetBackup()
	if !backupRuns(l) || isHeldBy(vmi, job.GetUid()) {
		return nil
	}
	// A backup takes the lock before it begins, but the cache may not have it yet.
	now := &kubevirtv1.VirtualMachineInstance{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(vmi), now); err != nil {
		return client.IgnoreNotFound(err)
	}
	if now.UID != vmi.UID || isHeldBy(now, job.GetUid()) {
		return nil
	}
	if _, err := l.RPC().AbortBackup(ctx, &launcherpb.AbortBackupRequest{Uid: job.GetUid()}); err != nil {
		return fmt.Errorf("abort backup %s, which does not hold the instance: %w", job.GetUid(), err)
	}
	r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "StrayBackupAborted", "Abort", "Aborted the backup with UID %s, which ran on and no longer held the instance.", job.GetUid())
	return nil
}

// isHeldBy reports whether the instance's lock is that of the backup with this UID. An older version took locks without a UID.
func isHeldBy(vmi *kubevirtv1.VirtualMachineInstance, uid string) bool {
	tracking := vmi.Status.ChangedBlockTracking
	if tracking == nil || tracking.BackupStatus == nil {
		return false
	}
	return tracking.BackupStatus.BackupMsg == nil || *tracking.BackupStatus.BackupMsg == layout.BackupLock(types.UID(uid))
}
