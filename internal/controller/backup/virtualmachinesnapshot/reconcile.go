package virtualmachinesnapshot

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Reconcile takes one snapshot a step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// Not from the cache: an older state may be one in which VolumeSnapshots are made that were removed since.
	s, err := reconcile.Find(ctx, r.live, req.NamespacedName, &vmsnapshotv1.VirtualMachineSnapshot{})
	if err != nil || s == nil {
		return ctrl.Result{}, err
	}
	in, err := r.gatherInput(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(in)
	refused, err := r.applyDecision(ctx, in, d)
	if err == nil && refused != "" {
		failed := in.failSnapshot(refused)
		d.again = failed.again
		err = r.writeStatus(ctx, s, failed.status)
	}
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: d.again}, err)
}

// applyDecision does what d says. refused says what the API server will never accept, or what somebody else has made under
// a name that the snapshot needs.
func (r *reconciler) applyDecision(ctx context.Context, in *input, d decision) (refused string, err error) {
	s := in.snapshot
	if d.finalizer && !controllerutil.ContainsFinalizer(s, Finalizer) {
		base := s.DeepCopy()
		controllerutil.AddFinalizer(s, Finalizer)
		if err := r.cached.Patch(ctx, s, reconcile.MergeFrom(base)); err != nil {
			return "", fmt.Errorf("add the finalizer to VirtualMachineSnapshot %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	if d.content != nil {
		if refused, err := r.children.Make(ctx, s.UID, d.content); refused != "" || err != nil {
			return refused, err
		}
	}
	if d.status != nil {
		if err := r.writeStatus(ctx, s, d.status); err != nil {
			return "", err
		}
	}
	if d.cut {
		if refused, err := r.makeVolumeSnapshots(ctx, in); refused != "" || err != nil {
			return refused, err
		}
	}
	if d.contentStatus != nil {
		if err := r.writeContentStatus(ctx, in.content, d.contentStatus); err != nil {
			return "", err
		}
	}
	if d.remove {
		if err := r.removeMade(ctx, in); err != nil {
			return "", err
		}
	}
	if d.release {
		base := s.DeepCopy()
		controllerutil.RemoveFinalizer(s, Finalizer)
		return "", client.IgnoreNotFound(r.cached.Patch(ctx, s, reconcile.MergeFrom(base)))
	}
	return "", nil
}

// makeVolumeSnapshots makes those that are missing, without a pause: the guest is frozen for them.
func (r *reconciler) makeVolumeSnapshots(ctx context.Context, in *input) (refused string, err error) {
	missing, err := newVolumeSnapshots(in)
	if err != nil {
		return err.Error(), nil //nolint:nilerr // somebody has spoiled the content: it stays so
	}
	for _, o := range missing {
		if refused, err := r.children.Make(ctx, in.snapshot.UID, o); refused != "" || err != nil {
			return refused, err
		}
	}
	return "", nil
}

// removeMade deletes the VolumeSnapshots, and the content when they are gone.
func (r *reconciler) removeMade(ctx context.Context, in *input) error {
	for _, o := range in.made {
		if err := r.children.Remove(ctx, o); err != nil {
			return err
		}
	}
	content := in.ownContent()
	switch {
	case content == nil || len(in.made) > 0:
		return nil
	case content.DeletionTimestamp == nil:
		return r.children.Remove(ctx, content) // the next look releases it
	}
	return r.releaseContent(ctx, content)
}

// writeStatus writes the status if it differs, and tells of an end.
func (r *reconciler) writeStatus(ctx context.Context, s *vmsnapshotv1.VirtualMachineSnapshot, status *vmsnapshotv1.VirtualMachineSnapshotStatus) error {
	if equality.Semantic.DeepEqual(s.Status, status) {
		return nil
	}
	base := s.DeepCopy()
	s.Status = status.DeepCopy()
	if err := r.cached.Status().Patch(ctx, s, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write status of VirtualMachineSnapshot %s/%s: %w", s.Namespace, s.Name, err)
	}
	if base.Status != nil && base.Status.Phase == status.Phase {
		return nil
	}
	switch status.Phase {
	case vmsnapshotv1.Succeeded:
		r.events.Eventf(s, nil, corev1.EventTypeNormal, "SnapshotSucceeded", "Snapshot", "The snapshot can be used.")
	case vmsnapshotv1.Failed:
		r.events.Eventf(s, nil, corev1.EventTypeWarning, "SnapshotFailed", "Snapshot", "%s", *status.Error.Message)
	case vmsnapshotv1.InProgress, vmsnapshotv1.Deleting:
	}
	return nil
}

func (r *reconciler) writeContentStatus(
	ctx context.Context, c *vmsnapshotv1.VirtualMachineSnapshotContent,
	status *vmsnapshotv1.VirtualMachineSnapshotContentStatus,
) error {
	if equality.Semantic.DeepEqual(c.Status, status) {
		return nil
	}
	base := c.DeepCopy()
	c.Status = status
	if err := r.cached.Status().Patch(ctx, c, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write status of VirtualMachineSnapshotContent %s/%s: %w", c.Namespace, c.Name, err)
	}
	return nil
}
