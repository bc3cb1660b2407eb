package backuprepository

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/datamove/errand"
	"github.com/varvebackup/varve/internal/controller/datamove/storagepod"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// Looker looks into storages that only pods can mount: see storagepod.Looker.
type Looker interface {
	Find(ctx context.Context, volume corev1.VolumeSource) (s datamove.Storage, refusal string, err error)
	Look(ctx context.Context, r *storagepod.Request) repositoryaccess.Seen
}

// Options are what Setup needs besides the manager. Namespace and Image have no default.
type Options struct {
	// Namespace is Varve's own. BackupRepositories, their Secrets and their Jobs are there.
	Namespace string
	// Image is what maintenance pods are made of.
	Image datamove.PodImage
	// Namespaces returns the namespaces whose locations are served.
	Namespaces func(context.Context) ([]string, error)
	// PasswordPerNamespace says whether each namespace's repository has a password of its own. Default: the repositories of a location
	// share one.
	PasswordPerNamespace func(context.Context) (bool, error)
	// Stores does the work in buckets. Default: a repositoryaccess.Store.
	Stores repositoryaccess.Storages
	// Looker does the work in claims and NFS exports. Default: a storagepod.Looker.
	Looker Looker
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// limits bound the looks into storages: one that hangs keeps two of eight places, and each only for a minute.
var limits = errand.Limits{InAll: 8, PerGroup: 2, Deadline: time.Minute}

// reconciler applies what decide says.
type reconciler struct {
	Options
	cached  client.Client
	live    client.Reader
	events  events.EventRecorder
	errands *errand.Runner[attempt]
	memory  *memory
	places  *JobPlaces
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Stores == nil {
		o.Stores = repositoryaccess.NewStore(o.Clock.Now, nil)
	}
	if o.Looker == nil {
		o.Looker = &storagepod.Looker{Namespace: o.Namespace, Image: o.Image, Client: mgr.GetClient(), Live: mgr.GetAPIReader()}
	}
	if o.PasswordPerNamespace == nil {
		o.PasswordPerNamespace = func(context.Context) (bool, error) { return false, nil }
	}
	r := &reconciler{
		Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader(), errands: errand.NewRunner[attempt](limits), memory: newMemory(),
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-repository")),
		places: NewJobPlaces(datamove.LabelMaintenance),
	}
	if err := mgr.Add(r.errands); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("backuprepository").
		For(&velerov1.BackupRepository{}).
		Owns(&batchv1.Job{}).
		Watches(&velerov1.BackupStorageLocation{}, handler.EnqueueRequestsFromMapFunc(r.requestsForLocation)).
		WatchesRawSource(r.errands.Source()).
		WatchesRawSource(r.places.Source()).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// requestsForLocation maps a location to its repositories.
func (r *reconciler) requestsForLocation(ctx context.Context, l client.Object) []ctrl.Request {
	list := &velerov1.BackupRepositoryList{}
	if err := r.cached.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
		// The list comes from memory, so this does not happen while the manager runs.
		log.FromContext(ctx).Error(err, "list backup repositories")
		return nil
	}
	var requests []ctrl.Request
	for i := range list.Items {
		if locationOf(&list.Items[i]) == client.ObjectKeyFromObject(l) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// locationOf returns the location that a repository is in.
func locationOf(repo *velerov1.BackupRepository) datamove.Location {
	return datamove.Location{Namespace: repo.Spec.RepositoryConfig[datamove.ConfigLocationNamespace], Name: repo.Spec.BackupStorageLocation}
}

// CachedObjects returns what the cache of the controller's manager has of the kinds that only this controller reads. BackupRepositories of
// Velero's and Jobs of others are none of its business.
func CachedObjects(namespace string) map[client.Object]cache.ByObject {
	own := map[string]cache.Config{namespace: {}}
	return map[client.Object]cache.ByObject{
		&velerov1.BackupRepository{}: {Namespaces: own},
		&batchv1.Job{}:               {Namespaces: own},
	}
}
