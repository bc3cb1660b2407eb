package pointdeletion

import (
	"context"
	"fmt"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/backuprepository"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager. Only Clock has a default.
type Options struct {
	// Namespace is Varve's own. BackupRepositories and Jobs are there.
	Namespace string
	// Image is what deletion pods are made of.
	Image datamove.PodImage
	// Namespaces returns the namespaces whose DeleteBackupRequests are served.
	Namespaces func(context.Context) ([]string, error)
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// Setup adds the controllers to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	in := &repositories{
		Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-deletion")),
		places: backuprepository.NewJobPlaces(datamove.LabelDeletion),
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("pointdeletion").
		For(&velerov1.BackupRepository{}).
		Watches(&velerov2.DataUpload{}, handler.EnqueueRequestsFromMapFunc(in.repositoryOfUpload)).
		Watches(&batchv1.Job{}, handler.EnqueueRequestsFromMapFunc(in.repositoryOfJob)).
		WatchesRawSource(in.places.Source()).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(in)
	if err != nil {
		return fmt.Errorf("set up the deletion of restore points: %w", err)
	}
	deletions := &requests{Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader()}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("deletebackuprequest").
		For(&velerov1.DeleteBackupRequest{}).
		Watches(&velerov2.DataUpload{}, handler.EnqueueRequestsFromMapFunc(deletions.requestsOfUpload)).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(deletions)
	if err != nil {
		return fmt.Errorf("set up DeleteBackupRequests: %w", err)
	}
	return nil
}

func (r *repositories) repositoryOfUpload(_ context.Context, o client.Object) []ctrl.Request {
	u, ok := o.(*velerov2.DataUpload)
	if !ok || !isWanted(u) {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: r.Namespace, Name: repositoryOf(u)}}}
}

func (r *repositories) repositoryOfJob(_ context.Context, o client.Object) []ctrl.Request {
	if o.GetLabels()[datamove.LabelDeletion] == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[datamove.LabelRepository]}}}
}

// requestsOfUpload maps a DataUpload to the requests that delete its backup.
func (r *requests) requestsOfUpload(ctx context.Context, o client.Object) []ctrl.Request {
	backup := o.GetLabels()[datamove.LabelBackupName]
	list := &velerov1.DeleteBackupRequestList{}
	if backup == "" {
		return nil
	}
	if err := r.cached.List(ctx, list, client.InNamespace(o.GetNamespace())); err != nil {
		// The list comes from memory, so this does not happen while the manager runs.
		log.FromContext(ctx).Error(err, "list delete backup requests")
		return nil
	}
	var found []ctrl.Request
	for i := range list.Items {
		if q := &list.Items[i]; q.DeletionTimestamp != nil && datamove.BackupLabel(q.Spec.BackupName) == backup {
			found = append(found, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(q)})
		}
	}
	return found
}

// CachedObjects returns what the cache of the controllers' manager has of the kinds that only these controllers read: little of each
// DataUpload, because they stay as long as their backups.
func CachedObjects() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&velerov2.DataUpload{}: {Transform: shrinkUpload}}
}

// shrinkUpload keeps of a DataUpload what decisions need, and of one of a machine's disk everything that tells other controllers to look again:
// they drop updates that change nothing of what is kept.
func shrinkUpload(object any) (any, error) {
	o, ok := object.(*velerov2.DataUpload)
	if !ok {
		return object, nil
	}
	o.ManagedFields, o.OwnerReferences = nil, nil
	maps.DeleteFunc(o.Labels, func(name, _ string) bool { return name != datamove.LabelBackupName && name != datamove.LabelBackupUID })
	ofMachine := o.Spec.SnapshotType == velerov2.SnapshotMachineBackup
	maps.DeleteFunc(o.Annotations, func(name, _ string) bool {
		return name != datamove.AnnotationPointDeletion && (name != datamove.AnnotationExposed || !ofMachine)
	})
	maps.DeleteFunc(o.Status.DataMoverResult, func(name, _ string) bool { return name != datamove.ResultRepository })
	o.Spec = velerov2.DataUploadSpec{
		BackupStorageLocation: o.Spec.BackupStorageLocation, SourceNamespace: o.Spec.SourceNamespace, SourcePVC: o.Spec.SourcePVC, DataMover: o.Spec.DataMover, Cancel: o.Spec.Cancel,
		SnapshotType: o.Spec.SnapshotType, DataMoverConfig: o.Spec.DataMoverConfig,
	}
	o.Status = velerov2.DataUploadStatus{
		Phase: o.Status.Phase, AcceptedByNode: o.Status.AcceptedByNode, SnapshotID: o.Status.SnapshotID,
		DataMoverResult: o.Status.DataMoverResult,
		StartTimestamp:  o.Status.StartTimestamp, CompletionTimestamp: o.Status.CompletionTimestamp,
	}
	return o, nil
}
