package drive

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

const (
	// maxSteps is how many steps one pass takes at most. No object needs more from one status to the next.
	maxSteps = 10
	// passTimeout is how long one pass may take, so that an API server that does not answer keeps no worker.
	passTimeout = time.Minute
)

// Mover is what the parts of the data mover share.
type Mover struct {
	// Namespace is Varve's own.
	Namespace string
	// ObjectNamespaces are those whose objects are watched; nil: all. The settings say which of them are served.
	ObjectNamespaces []string
	Image            datamove.PodImage
	// Cached reads what the package's cache has, Cluster claims and machines of all namespaces from that of the
	// manager; Live reads from the API server.
	Cached, Cluster client.Reader
	Live            client.Reader
	Writer          client.Writer
	// Uploads are the exposers of DataUploads by snapshotType, Downloads is that of DataDownloads.
	Uploads   map[string]Exposer[*velerov2.DataUpload]
	Downloads Exposer[*velerov2.DataDownload]
	// Deleter deletes restore points; nil: a DataUpload that is deleted leaves its restore point.
	Deleter  Deleter
	Settings *CurrentSettings
	Events   events.EventRecorder
	Measures *metric.Movements
	Clock    clock.PassiveClock
	Log      logr.Logger

	places  places
	volumes volumeNodes
}

// Reconciler takes the objects of one kind from phase to phase.
type Reconciler struct {
	*Mover
	Kind datamove.Kind
}

// Reconcile takes one object as far as it goes without waiting.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	result, err := r.advance(ctx, req)
	if err != nil && !apierrors.IsConflict(err) {
		err = fmt.Errorf("%s %s: %w", r.Kind, req.NamespacedName, err)
	}
	return reconcile.RetryConflict(result, err)
}

func (r *Reconciler) advance(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o, err := reconcile.Find(ctx, r.Cached, req.NamespacedName, newObject(r.Kind))
	if err != nil || o == nil {
		return ctrl.Result{}, err
	}
	current := r.Settings.Current(ctx)
	v, err := viewOf(o)
	if !isOurs(&current, &v) {
		return ctrl.Result{}, nil // another data mover's, whatever it has in its annotations
	}
	if err != nil || v.isOver() {
		return ctrl.Result{}, err
	}
	if v.Phase != velerov2.PhaseNew || v.Driver != "" {
		// What follows may have effects, so it must not follow from old news.
		if o, err = reconcile.Find(ctx, r.Live, req.NamespacedName, newObject(r.Kind)); err != nil || o == nil {
			return ctrl.Result{}, err
		}
	}
	p := &pass{Reconciler: r, object: o, settings: current}
	for range maxSteps {
		if err := p.observe(ctx); err != nil {
			return ctrl.Result{}, err
		}
		d := decide(p.in)
		switch d.Do {
		case Wait:
			return ctrl.Result{RequeueAfter: d.Again}, nil
		case Write:
			return p.writeDecision(ctx, &d)
		default:
			if err := p.act(ctx, d.Do); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	return reconcile.RetrySoon(), nil
}

func (p *pass) writeDecision(ctx context.Context, d *Decision) (ctrl.Result, error) {
	if err := p.write(ctx, p.object, d.Change); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	p.report(p.object, &p.in.Object, &d.Change)
	return ctrl.Result{RequeueAfter: d.Again}, nil
}

func newObject(kind datamove.Kind) client.Object {
	if kind == datamove.Upload {
		return &velerov2.DataUpload{}
	}
	return &velerov2.DataDownload{}
}

// write sends what a change changes. The API server refuses that with a conflict if anybody has written the object since it was read.
func (m *Mover) write(ctx context.Context, o client.Object, c Change) error {
	changed, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	c.applyTo(changed)
	if equality.Semantic.DeepEqual(changed, o) {
		return nil
	}
	return m.Writer.Patch(ctx, changed, reconcile.MergeFrom(o))
}

// report tells of a new phase once it is written.
func (m *Mover) report(o client.Object, before *Object, c *Change) {
	if c.Phase == before.Phase {
		return
	}
	now := m.Clock.Now()
	switch kind, memory := string(before.Kind), &before.Memory; c.Phase {
	case velerov2.PhaseInProgress:
		m.Measures.Stage(kind, metric.StagePrepare, now.Sub(before.Accepted))
	case velerov2.PhaseCompleted:
		if memory.Finishing != nil {
			m.Measures.Stage(kind, metric.StageMove, memory.Finishing.Sub(before.Started))
			m.Measures.Stage(kind, metric.StageFinish, now.Sub(memory.Finishing.Time))
		}
		if r := before.Report; r != nil && r.Pod == memory.Pod {
			moved := metric.MovedBytes{Volume: r.TotalBytes}
			if before.Kind == datamove.Upload {
				moved.Read, moved.Changed, moved.Stored = r.ReadBytes, r.IncrementalBytes, r.StoredBytes
			}
			m.Measures.Moved(kind, moved)
		}
	case velerov2.PhaseCanceled:
		if memory.Ending != nil {
			m.Measures.Stage(kind, metric.StageCancel, now.Sub(memory.Ending.Since.Time))
		}
	case velerov2.PhaseFailed:
		m.Measures.Failed(kind, string(c.failureReason()))
	default:
	}
	if !c.Phase.Ended() {
		return
	}
	m.Measures.Ended(string(before.Kind), string(c.Phase))
	kind, text := corev1.EventTypeNormal, cmp.Or(c.Message, "The data was moved.")
	if c.Phase == velerov2.PhaseFailed {
		kind = corev1.EventTypeWarning
	}
	m.Events.Eventf(o, nil, kind, string(c.Phase), "Move", "%s", text)
}

// act takes one step. What comes of it goes into the input.
func (p *pass) act(ctx context.Context, a Action) error {
	switch a {
	case Place:
		node, err := p.placeAgain(ctx)
		if err != nil {
			return err
		}
		p.in.Placed = &node
	case MayYield:
		may, err := p.mayYield(ctx)
		if err != nil {
			return err
		}
		p.in.MayYield = &may
	case Expose:
		answer, err := p.expose(ctx)
		if apierrors.IsConflict(err) {
			return err
		}
		p.in.Exposed = &ExposeAnswer{Exposure: answer, Err: err}
		if answer.Notice != "" {
			p.Events.Eventf(p.object, nil, corev1.EventTypeWarning, "NoConsumer", "Expose", "%s", answer.Notice)
		}
	case Finish, Dispose, DeletePoint:
		return p.proceed(ctx, a)
	case MakeRepository:
		return p.makeRepository(ctx)
	case MakePod:
		return p.makePod(ctx)
	case DeletePod:
		return p.deletePod(ctx, nil)
	case KillPod:
		return p.deletePod(ctx, ptr.To[int64](0))
	default:
		return fmt.Errorf("unknown action %q", a)
	}
	return nil
}

func (p *pass) proceed(ctx context.Context, a Action) error {
	var to **ProgressAnswer
	var progress Progress
	var err error
	switch a {
	case Finish:
		to = &p.in.Finished
		progress, err = p.finish(ctx)
	case Dispose:
		to = &p.in.Disposed
		progress, err = p.dispose(ctx)
	default:
		to = &p.in.Deleted
		upload, ok := p.object.(*velerov2.DataUpload)
		if !ok {
			return fmt.Errorf("%T has no restore point", p.object)
		}
		progress, err = p.Deleter.DeletePoint(ctx, upload)
	}
	if apierrors.IsConflict(err) {
		return err
	}
	*to = &ProgressAnswer{Progress: progress, Err: err}
	return nil
}

// makePod creates the pod. What keeps the API server from it, such as a quota, goes into the object's message.
func (p *pass) makePod(ctx context.Context) error {
	volume := *p.in.Exposed.Volume
	elsewhere, err := p.nodesElsewhere(ctx, &volume)
	if err != nil {
		return err
	}
	pod := moverPod(podInput{
		object: p.object, view: p.in.Object, namespace: p.Namespace, node: p.in.Object.Driver,
		repository: p.in.Repository.Name, volume: volume,
		image: p.Image, settings: p.settings, storage: p.storage, contents: p.contents, elsewhere: elsewhere,
	})
	err = p.Writer.Create(ctx, pod)
	switch {
	case err == nil:
		p.pod = pod
	case apierrors.IsAlreadyExists(err):
	default:
		p.in.PodErr = err
	}
	return nil
}

// deletePod deletes the pod, with the grace period that it has, or another one.
func (p *pass) deletePod(ctx context.Context, grace *int64) error {
	options := []client.DeleteOption{client.Preconditions{UID: &p.pod.UID}}
	if grace != nil {
		options = append(options, client.GracePeriodSeconds(*grace))
	}
	if err := p.Writer.Delete(ctx, p.pod, options...); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete pod %s: %w", p.pod.Name, err)
	}
	return nil
}
