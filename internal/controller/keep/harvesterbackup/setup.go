package harvesterbackup

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/controller/keep/stored"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Options are what Setup needs besides the manager. Namespace has no default.
type Options struct {
	// Namespace is Varve's own. Locations and definitions are there.
	Namespace string
	// BesideKubeVirt says that machines run under KubeVirt.
	BesideKubeVirt bool
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached client.Client
	// live reads from the API server: only the metadata of backups is cached, and of machines and claims not every field.
	live     client.Reader
	events   events.EventRecorder
	children child.Maker
	stored   stored.Reader
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	r := &reconciler{
		Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-machine-backup")),
	}
	r.children = child.Maker{Writer: r.cached, Live: r.live, Label: LabelBackup}
	r.stored = stored.Reader{Maker: r.children}
	return ctrl.NewControllerManagedBy(mgr).
		Named("harvesterbackup"+o.ControllerSuffix).
		For(&harvesterv1.VirtualMachineBackup{}, builder.OnlyMetadata, builder.WithPredicates(child.GoesOn())).
		Watches(&velerov2.DataUpload{}, handler.EnqueueRequestsFromMapFunc(requestForUpload),
			builder.WithPredicates(reconcile.MoreThanVersion())).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// requestForUpload returns the backup that a DataUpload stores a disk of.
func requestForUpload(_ context.Context, o client.Object) []ctrl.Request {
	upload, ok := o.(*velerov2.DataUpload)
	if !ok || upload.Spec.DataMoverConfig[datamove.ConfigMachineBackup] == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{
		Namespace: upload.Spec.SourceNamespace,
		Name:      upload.Spec.DataMoverConfig[datamove.ConfigMachineBackup],
	}}}
}
