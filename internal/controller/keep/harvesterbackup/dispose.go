package harvesterbackup

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/keep/condition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// disposalDeadline is how long a deletion waits for the restore points to go, so that it can say what keeps them. After
// that the DataUploads wait for it alone: a backup can be deleted although its location does not answer.
const disposalDeadline = 2 * time.Minute

// deleteStored deletes the DataUploads of a deleted backup, and with them its restore points, or its
// VirtualMachineSnapshot, and lets the backup go. A restore that reads the backup holds it, and so does a restored disk
// that is not made yet. What is stored of a namespace that is deleted stays stored: that is what backups are for.
func (r *reconciler) deleteStored(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(b, Finalizer) {
		return ctrl.Result{}, nil
	}
	reading, err := r.findRestores(ctx, b)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(reading) > 0 {
		return r.waitToGo(ctx, b, "VirtualMachineRestore "+strings.Join(reading, ", ")+" to end")
	}
	ending, err := r.isEnding(ctx, b.Namespace)
	if err != nil {
		return ctrl.Result{}, err
	}
	waiting, err := r.findWaitingClaim(ctx, b)
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case waiting != "" && !ending:
		return r.waitToGo(ctx, b, waiting)
	}
	if left, err := r.deleteRequest(ctx, b); err != nil || left {
		return ctrl.Result{RequeueAfter: lookEvery}, err
	}
	left, err := r.deleteDisks(ctx, b, ending)
	if err != nil {
		return ctrl.Result{}, err
	}
	if late := r.Clock.Now().After(b.DeletionTimestamp.Add(disposalDeadline)); left != "" && !late {
		return r.waitToGo(ctx, b, left)
	}
	if gone, err := r.removeHelpers(ctx, b); err != nil || !gone {
		return ctrl.Result{RequeueAfter: lookEvery}, err
	}
	base := b.DeepCopy()
	controllerutil.RemoveFinalizer(b, Finalizer)
	return ctrl.Result{}, client.IgnoreNotFound(r.cached.Patch(ctx, b, reconcile.MergeFrom(base)))
}

// findRestores returns the restores of the backup that have not ended.
func (r *reconciler) findRestores(ctx context.Context, b *harvesterv1.VirtualMachineBackup) ([]string, error) {
	var list harvesterv1.VirtualMachineRestoreList
	if err := r.live.List(ctx, &list, client.MatchingLabelsSelector{Selector: layout.UnfinishedBackups()}); err != nil {
		return nil, fmt.Errorf("list VirtualMachineRestores: %w", err)
	}
	var names []string
	for i := range list.Items {
		o := &list.Items[i]
		if o.Status.BackupUID == b.UID && !o.IsComplete() && !o.HasFailed() && o.DeletionTimestamp == nil {
			names = append(names, o.Namespace+"/"+o.Name)
		}
	}
	return names, nil
}

// findWaitingClaim says which restored disk is still to be made from the VolumeSnapshots of a backup, or "". Where volumes
// are made for the node of the first pod, that is so until the machine starts.
func (r *reconciler) findWaitingClaim(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (string, error) {
	if !isSnapshot(b) {
		return "", nil
	}
	var claims corev1.PersistentVolumeClaimList
	if err := r.live.List(ctx, &claims, client.InNamespace(b.Namespace)); err != nil {
		return "", fmt.Errorf("list the claims of %s: %w", b.Namespace, err)
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		if c.Status.Phase == corev1.ClaimBound || c.DeletionTimestamp != nil || c.Spec.DataSource == nil {
			continue
		}
		for _, v := range b.Status.VolumeBackups {
			if v.VolumeSnapshotName != nil && c.Spec.DataSource.Kind == "VolumeSnapshot" &&
				c.Spec.DataSource.Name == *v.VolumeSnapshotName {
				return fmt.Sprintf("PersistentVolumeClaim %s to be made from VolumeSnapshot %s: start its "+
					"machine, or delete the claim",
					c.Name, c.Spec.DataSource.Name), nil
			}
		}
	}
	return "", nil
}

// isEnding says whether a namespace is being deleted, with everything in it.
func (r *reconciler) isEnding(ctx context.Context, name string) (bool, error) {
	namespace, err := reconcile.Find(ctx, r.live, types.NamespacedName{Name: name}, &corev1.Namespace{})
	return namespace == nil || namespace.DeletionTimestamp != nil, err
}

// deleteDisks deletes what a backup has of its disks, and says what of it is left.
func (r *reconciler) deleteDisks(ctx context.Context, b *harvesterv1.VirtualMachineBackup, keepStored bool) (left string, err error) {
	if isSnapshot(b) {
		return r.deleteSnapshot(ctx, b)
	}
	return r.deleteUploads(ctx, b, keepStored)
}

// deleteUploads deletes the DataUploads of the backup, or only those that have stored nothing, and says which of these
// are left.
func (r *reconciler) deleteUploads(ctx context.Context, b *harvesterv1.VirtualMachineBackup, keepStored bool) (left string, err error) {
	if b.Status.Group == "" {
		return "", nil // it was not planned, or found: nothing of the location goes with it
	}
	all, err := r.readUploads(ctx, b)
	if err != nil {
		return "", err
	}
	for _, v := range b.Status.VolumeBackups {
		u := all[v.VolumeName]
		if u == nil || keepStored && u.Status.Phase == velerov2.PhaseCompleted {
			continue
		}
		left = describeUpload(u)
		if err := r.children.Remove(ctx, u); err != nil {
			return "", err
		}
	}
	return left, nil
}

func describeUpload(u *velerov2.DataUpload) string {
	text := fmt.Sprintf("DataUpload %s/%s to be deleted with its restore point", u.Namespace, u.Name)
	if u.Status.Message != "" {
		text += " (" + u.Status.Message + ")"
	}
	return text
}

// waitToGo says what the deletion waits for.
func (r *reconciler) waitToGo(ctx context.Context, b *harvesterv1.VirtualMachineBackup, what string) (ctrl.Result, error) {
	base := b.DeepCopy()
	condition.Set(&b.Status.Conditions, r.Clock.Now(), harvesterv1.ConditionProgressing, corev1.ConditionTrue,
		"Deleting", "the deletion waits for "+what)
	if err := r.writeStatus(ctx, base, b); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: lookEvery}, nil
}
