package catalogue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/datamove/errand"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// Lister lists the repositories of a bucket: see repositoryaccess.Store.
type Lister interface {
	List(ctx context.Context, root datamove.Access, known []string, limit int) (repositoryaccess.Catalogue, error)
}

// Options are what Setup needs besides the manager. Namespace and Namespaces have no default.
type Options struct {
	// Namespace is Varve's own.
	Namespace string
	// Namespaces returns the namespaces whose locations are served.
	Namespaces func(context.Context) ([]string, error)
	// Lister lists buckets. Default: a repositoryaccess.Store.
	Lister Lister
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// limits bound the looks: a server that hangs keeps one of four places, for a minute.
var limits = errand.Limits{InAll: 4, PerGroup: 1, Deadline: time.Minute}

// batch is how many repositories one look takes.
const batch = 100

type reconciler struct {
	Options
	*Recorder

	errands *errand.Runner[attempt]

	mu   sync.Mutex
	last map[types.NamespacedName]attempt
}

// NewRecorder returns the Recorder of a manager.
func NewRecorder(mgr ctrl.Manager, namespace string) *Recorder {
	return &Recorder{Namespace: namespace, Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-catalogue"))}
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Lister == nil {
		o.Lister = repositoryaccess.NewStore(o.Clock.Now, nil)
	}
	r := &reconciler{Options: o, Recorder: NewRecorder(mgr, o.Namespace), errands: errand.NewRunner[attempt](limits), last: map[types.NamespacedName]attempt{}}
	if err := mgr.Add(r.errands); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("catalogue").
		For(&velerov1.BackupStorageLocation{}).
		WatchesRawSource(r.errands.Source()).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// Reconcile looks at one location, if it is due, and records what the last look has found.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	served, err := r.Namespaces(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	l, err := reconcile.Find(ctx, r.Client, req.NamespacedName, &velerov1.BackupStorageLocation{})
	if err != nil {
		return ctrl.Result{}, err
	}
	if l == nil || l.DeletionTimestamp != nil || !slices.Contains(served, req.Namespace) {
		r.remember(req.NamespacedName, nil)
		return ctrl.Result{}, nil
	}
	if a, ok := r.errands.Take(req.NamespacedName); ok {
		if err := r.take(ctx, l, &a); err != nil {
			return ctrl.Result{}, err
		}
	}
	in := &input{Now: r.Clock.Now(), Location: l, Own: l.Namespace == r.Options.Namespace, Last: r.recall(req.NamespacedName), Running: r.errands.Running(req.NamespacedName)}
	look, after := decide(in)
	if !look {
		return ctrl.Result{RequeueAfter: after}, nil
	}
	return ctrl.Result{}, r.look(ctx, l)
}

// take records what a look has found, unless the location has changed since.
func (r *reconciler) take(ctx context.Context, l *velerov1.BackupStorageLocation, a *attempt) error {
	key := client.ObjectKeyFromObject(l)
	place, _, err := r.place(ctx, l)
	if err != nil || fingerprint(l, &place) != a.Fingerprint {
		r.remember(key, nil)
		return err
	}
	before := r.recall(key)
	r.remember(key, a)
	for _, why := range []string{a.Failure, a.Unread} {
		if why != "" && (before == nil || before.Failure != why && before.Unread != why) {
			r.Events.Eventf(l, nil, corev1.EventTypeWarning, "CatalogueIncomplete", "List", "Repositories in the location may be missing here: %s", why)
		}
	}
	return r.Record(ctx, l, a.Catalogue)
}

// place returns where a location is. A refusal is shown by whoever tries it.
func (r *reconciler) place(ctx context.Context, l *velerov1.BackupStorageLocation) (p location.Place, ok bool, err error) {
	secrets, err := location.ReadSecrets(ctx, r.Live, l)
	if err != nil {
		return p, false, err
	}
	p, err = location.Parse(l, secrets)
	return p, err == nil && !p.NeedsPod(), nil
}

// look starts an errand. Where only pods can look, they do so for the controller that tries the location.
func (r *reconciler) look(ctx context.Context, l *velerov1.BackupStorageLocation) error {
	place, ok, err := r.place(ctx, l)
	if err != nil || !ok {
		return err
	}
	key := client.ObjectKeyFromObject(l)
	known, err := r.Known(ctx, key)
	if err != nil {
		return err
	}
	if len(known) >= repositoryaccess.MaxCatalogued {
		return nil // Record has said so
	}
	root, done := place.Root(), attempt{Fingerprint: fingerprint(l, &place), Spec: *l.Spec.DeepCopy()}
	r.errands.Run(key, key.String(), func(ctx context.Context) attempt {
		var err error
		if done.Catalogue, err = r.Lister.List(ctx, root, known, batch); err != nil {
			done.Failure = repositoryaccess.Explain(err, root, repositoryaccess.Words{Place: place.String(), Keys: "the Secret of the location"})
		}
		done.At = r.Clock.Now()
		return done
	})
	return nil
}

// fingerprint stands for where a location is, and shows nothing of it.
func fingerprint(l *velerov1.BackupStorageLocation, p *location.Place) string {
	if p.S3 == nil {
		return ""
	}
	sum := sha256.Sum256(append(p.Root().Encode(), l.UID...))
	return hex.EncodeToString(sum[:])
}

func (r *reconciler) remember(key types.NamespacedName, a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a == nil {
		delete(r.last, key)
		return
	}
	r.last[key] = *a
}

func (r *reconciler) recall(key types.NamespacedName) *attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a, ok := r.last[key]; ok {
		return &a
	}
	return nil
}
