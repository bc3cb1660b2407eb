package backupstoragelocation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/datamove/catalogue"
	"github.com/varvebackup/varve/internal/controller/datamove/errand"
	"github.com/varvebackup/varve/internal/controller/datamove/storagepod"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// Trier tries a location: see repositoryaccess.Store.
type Trier interface {
	Try(ctx context.Context, root datamove.Access, write bool) error
}

// Looker tries a location that only pods can mount: see storagepod.Looker.
type Looker interface {
	Find(ctx context.Context, volume corev1.VolumeSource) (s datamove.Storage, refusal string, err error)
	Look(ctx context.Context, r *storagepod.Request) repositoryaccess.Seen
}

// Recorder records which repositories a location has: see catalogue.Recorder.
type Recorder interface {
	Known(ctx context.Context, where datamove.Location) ([]string, error)
	Record(ctx context.Context, l *velerov1.BackupStorageLocation, c repositoryaccess.Catalogue) error
}

// Options are what Setup needs besides the manager. Namespace and Image have no default.
type Options struct {
	// Namespace is Varve's own: whose locations are tried.
	Namespace string
	// Image is what the pods are made of that try claims and NFS exports.
	Image datamove.PodImage
	// Trier tries buckets. Default: a repositoryaccess.Store.
	Trier Trier
	// Looker tries claims and NFS exports. Default: a storagepod.Looker.
	Looker Looker
	// Recorder gets what pods find while they try a location. Default: a catalogue.Recorder.
	Recorder Recorder
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
}

// limits bound how locations are tried.
var limits = errand.Limits{InAll: 8, PerGroup: 1, Deadline: 30 * time.Second}

var locationKind = metav1.TypeMeta{APIVersion: velerov1.GroupVersion.String(), Kind: "BackupStorageLocation"}

type reconciler struct {
	Options
	cached  client.Client
	live    client.Reader
	events  events.EventRecorder
	errands *errand.Runner[attempt]

	mu   sync.Mutex
	last map[types.NamespacedName]attempt
}

// Setup adds the controller to mgr.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Trier == nil {
		o.Trier = repositoryaccess.NewStore(o.Clock.Now, nil)
	}
	if o.Looker == nil {
		o.Looker = &storagepod.Looker{Namespace: o.Namespace, Image: o.Image, Client: mgr.GetClient(), Live: mgr.GetAPIReader()}
	}
	if o.Recorder == nil {
		o.Recorder = catalogue.NewRecorder(mgr, o.Namespace)
	}
	r := &reconciler{
		Options: o, cached: mgr.GetClient(), live: mgr.GetAPIReader(), errands: errand.NewRunner[attempt](limits), last: map[types.NamespacedName]attempt{},
		events: reconcile.ShortenNotes(mgr.GetEventRecorder("varve-location")),
	}
	if err := mgr.Add(r.errands); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("backupstoragelocation").
		For(&velerov1.BackupStorageLocation{}).
		WatchesRawSource(r.errands.Source()).
		WithOptions(reconcile.Options(reconcile.ControllerWorkers)).
		Complete(r)
}

// Reconcile tries one location, if it is due.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if req.Namespace != r.Namespace {
		return ctrl.Result{}, nil // its status is Velero's
	}
	l, err := reconcile.Find(ctx, r.cached, req.NamespacedName, &velerov1.BackupStorageLocation{})
	if err != nil {
		return ctrl.Result{}, err
	}
	if l == nil || l.DeletionTimestamp != nil {
		r.remember(req.NamespacedName, nil)
		return ctrl.Result{}, nil
	}
	a, ended := r.errands.Take(req.NamespacedName)
	if ended {
		r.remember(req.NamespacedName, &a)
	}
	in, err := r.gather(ctx, l)
	if err != nil {
		return ctrl.Result{}, err
	}
	if ended && a.Catalogue != nil && a.Fingerprint == in.Fingerprint {
		if err := r.Recorder.Record(ctx, l, *a.Catalogue); err != nil {
			return ctrl.Result{}, err
		}
	}
	d := decide(in)
	if err := r.writeStatus(ctx, l, d.Status); err != nil {
		return reconcile.RetryConflict(ctrl.Result{}, err)
	}
	if d.Answered {
		r.remember(req.NamespacedName, &attempt{Check: l.Annotations[location.AnnotationCheck], At: in.Now})
	}
	if d.Try {
		if err := r.send(ctx, in, d.Write); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: d.After}, nil
}

// remember keeps how a location was tried last; nil forgets it.
func (r *reconciler) remember(key types.NamespacedName, a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a == nil {
		delete(r.last, key)
		return
	}
	switch before := r.last[key]; {
	case a.Wrote && a.Failure == "":
		a.WroteAt = a.At
	case before.Fingerprint == a.Fingerprint:
		a.WroteAt = before.WroteAt
	}
	r.last[key] = *a
}

func (r *reconciler) gather(ctx context.Context, l *velerov1.BackupStorageLocation) (*input, error) {
	key := client.ObjectKeyFromObject(l)
	in := &input{Now: r.Clock.Now(), Location: l, Running: r.errands.Running(key)}
	secrets, err := location.ReadSecrets(ctx, r.live, l)
	if err != nil {
		return nil, err
	}
	if in.Place, err = location.Parse(l, secrets); err != nil {
		in.Refusal = err.Error()
		in.Last = r.recall(key, "")
		return in, nil //nolint:nilerr // it is the location's refusal
	}
	switch {
	case in.Place.S3 == nil:
		if in.Storage, in.Refusal, err = r.Looker.Find(ctx, *in.Place.Volume); err != nil {
			return nil, err
		}
		if in.Refusal != "" {
			in.Last = r.recall(key, "")
			return in, nil
		}
	case in.Place.NeedsPod():
		in.Storage = in.Place.RoleStorage()
	}
	sum := sha256.Sum256(append(in.Place.Root().Encode(), in.Storage.Encode()+string(l.UID)...))
	in.Fingerprint = hex.EncodeToString(sum[:])
	in.Last = r.recall(key, in.Fingerprint)
	return in, nil
}

// recall returns the last attempt, if it was at what fingerprint stands for. That of a refusal is "".
func (r *reconciler) recall(key types.NamespacedName, fingerprint string) *attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[key]; ok && last.Fingerprint == fingerprint {
		return &last
	}
	return nil
}

// writeStatus writes the status if it differs. The kind has no status subresource.
func (r *reconciler) writeStatus(ctx context.Context, l *velerov1.BackupStorageLocation, status velerov1.BackupStorageLocationStatus) error {
	if equality.Semantic.DeepEqual(l.Status, status) {
		return nil
	}
	changed := l.DeepCopy()
	changed.Status = status
	if err := r.cached.Patch(ctx, changed, reconcile.MergeFrom(l)); err != nil {
		return fmt.Errorf("write status of location %s/%s: %w", l.Namespace, l.Name, err)
	}
	if l.Status.Phase == status.Phase && l.Status.Message == status.Message {
		return nil
	}
	if status.Phase == velerov1.LocationAvailable {
		r.events.Eventf(l, nil, corev1.EventTypeNormal, "LocationAvailable", "Try", "The location can be used.")
	} else if status.Message != "" {
		r.events.Eventf(l, nil, corev1.EventTypeWarning, "LocationUnavailable", "Try", "%s", status.Message)
	}
	return nil
}

// send starts an errand that tries the location.
func (r *reconciler) send(ctx context.Context, in *input, write bool) error {
	root, key := in.Place.Root(), client.ObjectKeyFromObject(in.Location)
	words := repositoryaccess.Words{Place: in.Place.String(), Keys: "the Secret of the location"}
	done := attempt{Fingerprint: in.Fingerprint, Check: in.Location.Annotations[location.AnnotationCheck], Wrote: write && !root.ReadOnly}
	if in.Place.NeedsPod() {
		look := &repositoryaccess.Look{Task: repositoryaccess.TryLocation, Root: root, Write: write, Words: words}
		if catalogue.IsWanted(in.Location) {
			known, err := r.Recorder.Known(ctx, key)
			if err != nil {
				return err
			}
			look.Catalogue, look.Known = len(known) < repositoryaccess.MaxCatalogued, known
		}
		request := &storagepod.Request{Owner: in.Location, Kind: locationKind, Storage: in.Storage, Look: look}
		r.errands.RunFor(storagepod.Deadline, key, key.String(), func(ctx context.Context) attempt {
			seen := r.Looker.Look(ctx, request)
			done.Failure, done.Catalogue = seen.Failure, seen.Catalogue
			done.At = r.Clock.Now()
			return done
		})
		return nil
	}
	r.errands.Run(key, key.String(), func(ctx context.Context) attempt {
		if err := r.Trier.Try(ctx, root, write); err != nil {
			done.Failure = repositoryaccess.Explain(err, root, words)
		}
		done.At = r.Clock.Now()
		return done
	})
	return nil
}
