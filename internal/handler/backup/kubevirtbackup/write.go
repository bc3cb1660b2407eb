package kubevirtbackup

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// writeStatus sends the changed fields of the backup's status. The write fails if somebody has written the backup since
// it was read.
func (r *Reconciler) writeStatus(ctx context.Context, s *gathered) error {
	if equality.Semantic.DeepEqual(s.backup.Status, s.before.Status) {
		return nil
	}
	patch := reconcile.MergeFrom(s.before)
	if err := r.Cached.Status().Patch(ctx, s.backup, patch); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.mu.Lock()
	if r.written == nil {
		r.written = map[types.UID]time.Time{}
	}
	r.written[s.backup.UID] = r.Clock.Now()
	r.mu.Unlock()
	if s.backup.Status.Phase != s.before.Status.Phase {
		r.reportPhase(s)
	}
	return nil
}

// reportPhase reports a new phase once it is written.
func (r *Reconciler) reportPhase(s *gathered) {
	b := s.backup
	switch b.Status.Phase {
	case backupv1.BackupCopied:
		if b.Status.StartTimestamp != nil {
			r.Measures.Copied(b.Status.BackupType, r.Clock.Since(b.Status.StartTimestamp.Time))
		}
		if b.Spec.IsPull() {
			r.Events.Eventf(b, nil, corev1.EventTypeNormal, "Collected", "Finish", "Clients read %d bytes.", b.Status.MovedBytes)
			return
		}
		r.Events.Eventf(b, nil, corev1.EventTypeNormal, "Copied", "Copy", "Wrote %d bytes to %s on the target.", b.Status.MovedBytes, b.Status.Directory)
	case backupv1.BackupCopyFailed:
		r.Events.Eventf(b, nil, corev1.EventTypeWarning, b.Status.Reason, "Copy", "%s", b.Status.Message)
	case backupv1.BackupServing:
		r.Events.Eventf(b, nil, corev1.EventTypeNormal, "Serving", "Serve", "The point in time is fixed and can be read as soon as the export serves it.")
	case backupv1.BackupCopying:
		r.Events.Eventf(b, nil, corev1.EventTypeNormal, "Copying", "Copy", "The point in time is fixed; data is being copied.")
	default:
	}
}
