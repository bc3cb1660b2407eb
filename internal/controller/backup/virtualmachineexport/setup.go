package virtualmachineexport

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/backup/exportproxy"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/reconcile"
)

// AuthoritySecret is the Secret in Varve's namespace that holds the authorities of exports.
const AuthoritySecret = "varve-export-ca"

// Options are what Setup needs besides the manager. Configuration and Image have no default.
type Options struct {
	// Configuration is the KubeVirt object that has the feature gates. The authorities are in its namespace.
	Configuration types.NamespacedName
	// Image is what export pods are made of.
	Image Image
	// ProxyHost is where the export proxy is reached. Default: where its Ingress is.
	ProxyHost string
	// OfferOf returns what a backup offers. Default: what the backup's status says.
	OfferOf OfferOf
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// reconciler applies what decide says.
type reconciler struct {
	Options
	cached      client.Client
	live        client.Reader
	events      events.EventRecorder
	authorities *authority.Keeper
	memory      *memory
	proxy       exportproxy.Finder
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.OfferOf == nil {
		opts.OfferOf = offerFromStatus
	}
	r := &reconciler{
		Options: opts, cached: mgr.GetClient(), live: mgr.GetAPIReader(), memory: newMemory(),
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-export")),
	}
	secret := types.NamespacedName{Namespace: opts.Configuration.Namespace, Name: AuthoritySecret}
	r.authorities = authority.NewKeeper(authority.LiveStore{Reader: r.live, Writer: r.cached}, secret, opts.Clock)
	r.proxy = exportproxy.Finder{Reader: r.live, Namespace: opts.Configuration.Namespace, Host: opts.ProxyHost}
	return ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineexport").
		For(&exportv1.VirtualMachineExport{}).
		Owns(&corev1.Pod{}).
		Owns(&corev1.Service{}).
		Watches(&corev1.PersistentVolumeClaim{}, r.requestsFor(servesClaim)).
		Watches(&corev1.Pod{}, r.requestsFor(servesClaimOfPod)).
		Watches(&kubevirtv1.VirtualMachine{}, r.requestsFor(isSource(exportv1.SourceMachine))).
		Watches(&kubevirtv1.VirtualMachineInstance{}, r.requestsFor(isSource(exportv1.SourceMachine))).
		Watches(&backupv1.VirtualMachineBackup{}, r.requestsFor(isSource(exportv1.SourceBackup))).
		Watches(&kubevirtv1.KubeVirt{}, handler.EnqueueRequestsFromMapFunc(r.requestsForConfiguration)).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// requestsFor maps an object to the exports in its namespace that concerns returns true for.
func (r *reconciler) requestsFor(concerns func(source *corev1.TypedLocalObjectReference, changed client.Object) bool) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, changed client.Object) []ctrl.Request {
		return r.requests(ctx, func(e *exportv1.VirtualMachineExport) bool { return concerns(&e.Spec.Source, changed) }, client.InNamespace(changed.GetNamespace()))
	})
}

// requestsForConfiguration maps the configuration to every export.
func (r *reconciler) requestsForConfiguration(ctx context.Context, _ client.Object) []ctrl.Request {
	return r.requests(ctx, func(*exportv1.VirtualMachineExport) bool { return true })
}

func (r *reconciler) requests(ctx context.Context, concerned func(*exportv1.VirtualMachineExport) bool, where ...client.ListOption) []ctrl.Request {
	list := &exportv1.VirtualMachineExportList{}
	if err := r.cached.List(ctx, list, where...); err != nil {
		// The list comes from memory, so this does not happen while the manager runs.
		log.FromContext(ctx).Error(err, "list exports")
		return nil
	}
	var requests []ctrl.Request
	for i := range list.Items {
		if concerned(&list.Items[i]) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

func isSource(kind string) func(*corev1.TypedLocalObjectReference, client.Object) bool {
	return func(source *corev1.TypedLocalObjectReference, changed client.Object) bool {
		return source.Kind == kind && source.Name == changed.GetName()
	}
}

// servesClaim reports whether the source may be, or have, the claim that has changed. Which claims a machine has is not
// looked up for that.
func servesClaim(source *corev1.TypedLocalObjectReference, changed client.Object) bool {
	return source.Kind == exportv1.SourceMachine || source.Kind == exportv1.SourceClaim && source.Name == changed.GetName()
}

// servesClaimOfPod reports whether the source may be, or have, a claim that the pod mounts.
func servesClaimOfPod(source *corev1.TypedLocalObjectReference, changed client.Object) bool {
	pod, ok := changed.(*corev1.Pod)
	return ok && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && !v.PersistentVolumeClaim.ReadOnly &&
			(source.Kind == exportv1.SourceMachine || source.Kind == exportv1.SourceClaim && source.Name == v.PersistentVolumeClaim.ClaimName)
	})
}
