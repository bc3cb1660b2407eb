package machinegroup

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/datamove/moversecret"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/reconcile"
)

// groupIndex is the index of DataUploads by their group.
const groupIndex = "machineGroup"

// Options are what Setup needs besides the manager. Namespace and AuthoritySecret have no default.
type Options struct {
	// Namespace is Varve's own. Mover pods, their Secrets and the settings are there.
	Namespace string
	// AuthoritySecret is the name of the Secret with the authorities that sign for mover pods.
	AuthoritySecret string
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached      client.Client
	live        client.Reader
	events      events.EventRecorder
	secrets     moversecret.Keeper
	authorities *authority.Keeper
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	live := mgr.GetAPIReader()
	r := &reconciler{
		Options: o, cached: mgr.GetClient(), live: live, events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-machine-group")),
		secrets:     moversecret.Keeper{Live: live, Writer: mgr.GetClient(), Namespace: o.Namespace, Good: &settings.LastGood{}},
		authorities: authority.NewKeeper(authority.LiveStore{Reader: live, Writer: mgr.GetClient()}, types.NamespacedName{Namespace: o.Namespace, Name: o.AuthoritySecret}, o.Clock),
	}
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &velerov2.DataUpload{}, groupIndex, func(o client.Object) []string {
		if upload, ok := o.(*velerov2.DataUpload); ok {
			if _, key := diskOf(upload); key.Name != "" {
				return []string{key.String()}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	ended := &endedBackups{live: live, found: make(chan event.GenericEvent)}
	if err := mgr.Add(ended); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("machinegroup"+o.ControllerSuffix).
		Watches(&velerov2.DataUpload{}, handler.EnqueueRequestsFromMapFunc(requestForUpload), builder.WithPredicates(reconcile.MoreThanVersion())).
		Watches(&backupv1.VirtualMachineBackup{}, handler.EnqueueRequestsFromMapFunc(requestForBackup)).
		WatchesRawSource(source.Channel(ended.found, handler.EnqueueRequestsFromMapFunc(requestForBackup))).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

func requestForUpload(_ context.Context, o client.Object) []ctrl.Request {
	upload, ok := o.(*velerov2.DataUpload)
	if !ok {
		return nil
	}
	_, key := diskOf(upload)
	if key.Name == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: key}}
}

func requestForBackup(_ context.Context, o client.Object) []ctrl.Request {
	group := o.GetAnnotations()[datamove.AnnotationGroup]
	if group == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: group}}}
}

func (r *reconciler) listMembers(ctx context.Context, key types.NamespacedName) ([]velerov2.DataUpload, error) {
	var list velerov2.DataUploadList
	err := r.cached.List(ctx, &list, client.MatchingFields{groupIndex: key.String()})
	return list.Items, err
}
