package virtualmachinesnapshot

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// contentReconciler lets a deleted content go whose snapshot is gone, as is that of one that was retained, and its
// VolumeSnapshots before it. The content of a snapshot that is there stays: the snapshot's deletion deletes it.
type contentReconciler struct{ *reconciler }

// Reconcile looks at one content.
func (r *contentReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	c, err := reconcile.Find(ctx, r.live, req.NamespacedName, &vmsnapshotv1.VirtualMachineSnapshotContent{})
	if err != nil || c == nil || !isHeld(c) {
		return ctrl.Result{}, err
	}
	if c.Spec.VirtualMachineSnapshotName != nil {
		key := types.NamespacedName{Namespace: c.Namespace, Name: *c.Spec.VirtualMachineSnapshotName}
		s, err := reconcile.Find(ctx, r.live, key, &vmsnapshotv1.VirtualMachineSnapshot{})
		if err != nil {
			return ctrl.Result{}, err
		}
		if s != nil && string(s.UID) == c.Labels[LabelSnapshot] {
			return ctrl.Result{RequeueAfter: reconcile.PollInterval(r.Clock.Since(c.DeletionTimestamp.Time))}, nil
		}
	}
	made, _, err := r.findMade(ctx, c.Namespace, types.UID(c.Labels[LabelSnapshot]))
	if err != nil {
		return ctrl.Result{}, err
	}
	for _, o := range made {
		if err := r.children.Remove(ctx, o); err != nil {
			return ctrl.Result{}, err
		}
	}
	if len(made) > 0 {
		return ctrl.Result{RequeueAfter: reconcile.PollInterval(r.Clock.Since(c.DeletionTimestamp.Time))}, nil
	}
	return reconcile.RetryConflict(ctrl.Result{}, r.releaseContent(ctx, c))
}

// isHeld says whether a content is deleted, and the finalizer holds it.
func isHeld(c client.Object) bool {
	return c.GetDeletionTimestamp() != nil && controllerutil.ContainsFinalizer(c, ContentFinalizer) &&
		c.GetLabels()[LabelSnapshot] != ""
}

// releaseContent takes the finalizer from a content.
func (r *reconciler) releaseContent(ctx context.Context, c *vmsnapshotv1.VirtualMachineSnapshotContent) error {
	if !controllerutil.ContainsFinalizer(c, ContentFinalizer) {
		return nil
	}
	base := c.DeepCopy()
	controllerutil.RemoveFinalizer(c, ContentFinalizer)
	if err := r.cached.Patch(ctx, c, reconcile.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("release VirtualMachineSnapshotContent %s/%s: %w", c.Namespace, c.Name, err)
	}
	return nil
}
