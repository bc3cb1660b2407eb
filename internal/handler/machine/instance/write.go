package instance

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// writeInterval is the minimum time between two writes of one instance's status that nobody waits for.
const writeInterval = time.Second

// writeStatus sends the changed fields of status. The write fails if somebody has written the object since it was read.
func (r *Reconciler) writeStatus(ctx context.Context, old, next *kubevirtv1.VirtualMachineInstance) error {
	if equality.Semantic.DeepEqual(old.Status, next.Status) {
		return nil
	}
	patch := reconcile.MergeFrom(old)
	if err := r.Cached.Status().Patch(ctx, next, patch); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written == nil {
		r.written = map[types.NamespacedName]time.Time{}
	}
	r.written[client.ObjectKeyFromObject(old)] = r.Clock.Now()
	return nil
}

// holdBack returns how long a change that nobody waits for must be delayed, so that a busy launcher does not flood
// the API server.
func (r *Reconciler) holdBack(old, next *kubevirtv1.VirtualMachineInstance) time.Duration {
	if isUrgent(&old.Status, &next.Status) || equality.Semantic.DeepEqual(old.Status, next.Status) {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.written[client.ObjectKeyFromObject(old)]
	if !ok {
		return 0
	}
	return max(0, writeInterval-r.Clock.Since(last))
}

// isUrgent reports whether others act on the change.
func isUrgent(old, next *kubevirtv1.VirtualMachineInstanceStatus) bool {
	same := func(a, b kubevirtv1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
	}
	return old.Phase != next.Phase || !slices.EqualFunc(old.Conditions, next.Conditions, same) ||
		!equality.Semantic.DeepEqual(old.VolumeStatus, next.VolumeStatus) ||
		!equality.Semantic.DeepEqual(old.ChangedBlockTracking, next.ChangedBlockTracking) ||
		!equality.Semantic.DeepEqual(old.MigrationState, next.MigrationState)
}
