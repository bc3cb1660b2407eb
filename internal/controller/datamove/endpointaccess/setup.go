package endpointaccess

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/moversecret"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/reconcile"
)

// backupIndex is the index of DataUploads by the backup whose endpoints they read.
const backupIndex = "endpointsOfBackup"

// Options are what Setup needs besides the manager. Namespace has no default.
type Options struct {
	// Namespace is Varve's own. Mover pods and the settings are there.
	Namespace string
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached  client.Client
	live    client.Reader
	events  events.EventRecorder
	secrets moversecret.Keeper
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	r := &reconciler{
		Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader(),
		secrets: moversecret.Keeper{Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Namespace: o.Namespace, Good: &settings.LastGood{}}, events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-endpoint-access")),
	}
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &velerov2.DataUpload{}, backupIndex, func(o client.Object) []string {
		if upload, ok := o.(*velerov2.DataUpload); ok {
			if backup, _, ok := backupOf(upload); ok {
				return []string{backup.String()}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	pods, err := moversecret.WatchPods(mgr, o.Namespace)
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("endpointaccess"+o.ControllerSuffix).
		For(&velerov2.DataUpload{}, builder.WithPredicates(reconcile.MoreThanVersion())).
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(r.requestsForBackup)).
		WatchesRawSource(pods).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// requestsForBackup returns the DataUploads that read a backup.
func (r *reconciler) requestsForBackup(ctx context.Context, o client.Object) []ctrl.Request {
	uploads, err := r.listReaders(ctx, client.ObjectKeyFromObject(o))
	if err != nil {
		return nil // the cache fails only when the process ends
	}
	requests := make([]ctrl.Request, 0, len(uploads))
	for i := range uploads {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&uploads[i])})
	}
	return requests
}

func (r *reconciler) listReaders(ctx context.Context, backup types.NamespacedName) ([]velerov2.DataUpload, error) {
	var list velerov2.DataUploadList
	err := r.cached.List(ctx, &list, client.MatchingFields{backupIndex: backup.String()})
	return list.Items, err
}
