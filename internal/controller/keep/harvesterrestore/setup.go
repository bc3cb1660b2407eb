package harvesterrestore

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/controller/keep/stored"
	"github.com/varvebackup/varve/internal/reconcile"
)

// StartFunc asks for the start of a machine that starts on request. It updates vm with what it wrote.
type StartFunc func(ctx context.Context, vm *unstructured.Unstructured) error

// Options are what Setup needs besides the manager.
type Options struct {
	// StartMachine starts a machine that starts on request. Required.
	StartMachine StartFunc
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

type reconciler struct {
	Options
	cached client.Client
	// live reads from the API server: only the metadata of restores is cached.
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
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-machine-restore")),
	}
	r.children = child.Maker{Writer: r.cached, Live: r.live, Label: LabelRestore}
	r.stored = stored.Reader{Maker: r.children}
	return ctrl.NewControllerManagedBy(mgr).
		Named("harvesterrestore"+o.ControllerSuffix).
		For(&harvesterv1.VirtualMachineRestore{}, builder.OnlyMetadata, builder.WithPredicates(child.GoesOn())).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}
