package keptsnapshot

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Reconcile looks at all kept snapshots, whatever the request says.
func (r *reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	again := ctrl.Result{RequeueAfter: r.Interval}
	var list snapshotv1.VolumeSnapshotList
	err := r.live.List(ctx, &list, client.InNamespace(r.Namespace), client.HasLabels{datamove.LabelKeptSnapshot})
	switch {
	case meta.IsNoMatchError(err):
		return again, nil // The cluster has no snapshots.
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("list kept snapshots: %w", err)
	case len(list.Items) == 0:
		return again, nil
	}
	current, err := r.settings(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	var failures []error
	all := make([]candidate, len(list.Items))
	for i := range list.Items {
		if err := r.examine(ctx, &list.Items[i], current, &all[i]); err != nil {
			all[i].unknown = true
			failures = append(failures, fmt.Errorf("look at what VolumeSnapshot %s is kept for: %w", list.Items[i].Name, err))
		}
	}
	for i, why := range decide(all) {
		if o := &list.Items[i]; why != "" && o.DeletionTimestamp == nil {
			failures = append(failures, r.remove(ctx, o, why))
		}
	}
	return again, errors.Join(failures...)
}

// remove deletes a VolumeSnapshot, and with it the snapshot on the storage.
func (r *reconciler) remove(ctx context.Context, o *snapshotv1.VolumeSnapshot, why string) error {
	log.FromContext(ctx).Info("a kept snapshot is deleted", "volumeSnapshot", o.Namespace+"/"+o.Name, "why", why)
	err := r.cached.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.UID)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete VolumeSnapshot %s/%s: %w", o.Namespace, o.Name, err)
	}
	return nil
}

// settings returns those that hold now, or nil if they cannot be read by anybody: then handlers keep to those that they had.
func (r *reconciler) settings(ctx context.Context) (*settings.Settings, error) {
	m, err := reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: r.Namespace, Name: settings.ConfigMap}, &corev1.ConfigMap{})
	if err != nil {
		return nil, err
	}
	current, err := settings.OfConfigMap(m)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // documented
	}
	return &current, nil
}

// examine reads what a snapshot is kept for. Nothing comes from a cache but which uploads run: what a cache does not have yet would be missed.
func (r *reconciler) examine(ctx context.Context, o *snapshotv1.VolumeSnapshot, current *settings.Settings, c *candidate) error {
	var err error
	c.made = o.CreationTimestamp.Time
	if c.kept, err = datamove.DecodeKeptSnapshot(o.Annotations[datamove.AnnotationKeptSnapshot]); err != nil || o.Labels[datamove.LabelKeptSnapshot] != c.kept.Key() {
		c.unreadable = true
		return nil //nolint:nilerr // no repetition helps
	}
	upload, err := reconcile.Find(ctx, r.live, c.kept.Upload, &velerov2.DataUpload{})
	if err != nil {
		return err
	}
	if upload == nil || upload.UID != c.kept.UploadUID || upload.DeletionTimestamp != nil {
		c.uploadGone = true
	} else if c.phase = upload.Status.Phase; upload.Status.CompletionTimestamp != nil {
		c.completed = upload.Status.CompletionTimestamp.Time
	}
	claim, err := reconcile.Find(ctx, r.live, c.kept.Claim, &corev1.PersistentVolumeClaim{})
	if err != nil {
		return err
	}
	c.claimGone = claim == nil || claim.UID != c.kept.ClaimUID || claim.DeletionTimestamp != nil
	c.settingOff = current != nil && !current.StorageClasses[c.kept.StorageClass].KeepSnapshot
	_, err = csichanges.FindService(ctx, r.live, c.kept.Driver)
	switch {
	case errors.Is(err, errclass.NotFound):
		c.serviceGone = true
	case err != nil && !errors.Is(err, errclass.Invalid): // Somebody is about to correct what is wrong with it.
		return err
	}
	c.inUse, err = r.isInUse(ctx, c.kept)
	return err
}

// isInUse says that another upload of the claim runs. It may have been told to count from the snapshot.
func (r *reconciler) isInUse(ctx context.Context, kept datamove.KeptSnapshot) (bool, error) {
	var uploads velerov2.DataUploadList
	if err := r.cached.List(ctx, &uploads, client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	for i := range uploads.Items {
		o := &uploads.Items[i]
		claim := types.NamespacedName{Namespace: o.Spec.SourceNamespace, Name: o.Spec.SourcePVC}
		if o.UID != kept.UploadUID && claim == kept.Claim && o.Spec.SnapshotType == velerov2.SnapshotCSI && isRunning(o.Status.Phase) {
			return true, nil
		}
	}
	return false, nil
}

func isRunning(phase velerov2.Phase) bool {
	switch phase {
	case velerov2.PhaseAccepted, velerov2.PhasePrepared, velerov2.PhaseInProgress, velerov2.PhaseCanceling:
		return true
	default:
		return false
	}
}
