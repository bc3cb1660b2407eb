package pointdeletion

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// requests serves the finalizer velero.io/dm-delete-backup of DeleteBackupRequests: the DataUploads of the backup are deleted with their
// restore points, and then the finalizer goes. Those of other data movers are left to them, and waited for.
type requests struct {
	Options
	cached client.Client
	live   client.Reader
}

// Reconcile takes one DeleteBackupRequest a step further.
func (r *requests) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o, err := reconcile.Find(ctx, r.cached, req.NamespacedName, &velerov1.DeleteBackupRequest{})
	// Velero deletes the request when it has deleted everything else.
	if err != nil || o == nil || o.DeletionTimestamp == nil || !controllerutil.ContainsFinalizer(o, datamove.FinalizerDeleteBackup) {
		return ctrl.Result{}, err
	}
	served, err := r.Namespaces(ctx)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the settings: %w", err)
	}
	if !slices.Contains(served, req.Namespace) {
		return ctrl.Result{RequeueAfter: lookEvery}, nil
	}
	uploads, err := r.uploadsOf(ctx, o)
	if err != nil {
		return ctrl.Result{}, err
	}
	for i := range uploads {
		if err := r.deleteUpload(ctx, &uploads[i]); err != nil {
			return reconcile.RetryConflict(ctrl.Result{}, err)
		}
	}
	if len(uploads) > 0 {
		return ctrl.Result{RequeueAfter: lookEvery}, nil
	}
	changed := o.DeepCopy()
	controllerutil.RemoveFinalizer(changed, datamove.FinalizerDeleteBackup)
	err = client.IgnoreNotFound(r.cached.Patch(ctx, changed, reconcile.MergeFrom(o)))
	return reconcile.RetryConflict(ctrl.Result{}, err)
}

// uploadsOf returns the DataUploads of the backup. They are read from the API server: none in the cache is not none.
func (r *requests) uploadsOf(ctx context.Context, o *velerov1.DeleteBackupRequest) ([]velerov2.DataUpload, error) {
	var list velerov2.DataUploadList
	err := r.live.List(ctx, &list, client.InNamespace(o.Namespace), client.MatchingLabels{datamove.LabelBackupName: datamove.BackupLabel(o.Spec.BackupName)})
	if err != nil {
		return nil, fmt.Errorf("list the DataUploads of backup %s/%s: %w", o.Namespace, o.Spec.BackupName, err)
	}
	uid := o.Labels[datamove.LabelBackupUID]
	// A later backup may have the name.
	return slices.DeleteFunc(list.Items, func(u velerov2.DataUpload) bool {
		other := u.Labels[datamove.LabelBackupUID]
		return uid != "" && other != "" && other != uid
	}), nil
}

// deleteUpload deletes a DataUpload of Varve's. The finalizer of one that made its restore point does the rest; for one that Velero has made
// again from the backup, the restore point is deleted first.
func (r *requests) deleteUpload(ctx context.Context, o *velerov2.DataUpload) error {
	id, err := datamove.ParseSnapshotID(o.Status.SnapshotID)
	named := err == nil
	if !named && o.Spec.DataMover != datamove.Mover && !controllerutil.ContainsFinalizer(o, datamove.Finalizer) {
		return nil // another data mover's
	}
	u := viewOf(o)
	if named && o.Status.Phase == velerov2.PhaseCompleted && (!owns(&u, id.Point) || !controllerutil.ContainsFinalizer(o, datamove.Finalizer)) {
		switch d := u.Deletion; {
		case d.Over():
		case d.ForBackup:
			return nil
		default:
			return r.ask(ctx, o)
		}
	}
	if o.DeletionTimestamp != nil {
		return nil
	}
	if err := r.cached.Delete(ctx, o, client.Preconditions{UID: &o.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete DataUpload %s/%s: %w", o.Namespace, o.Name, err)
	}
	return nil
}

// ask has the restore point of a DataUpload deleted that did not make it.
func (r *requests) ask(ctx context.Context, o *velerov2.DataUpload) error {
	changed := o.DeepCopy()
	asked := datamove.PointDeletion{UID: o.UID, State: datamove.DeletionWaits, ForBackup: true, Message: "the backup is deleted"}
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, datamove.AnnotationPointDeletion, asked.Encode())
	return client.IgnoreNotFound(r.cached.Patch(ctx, changed, reconcile.MergeFrom(o)))
}
