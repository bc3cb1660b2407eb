package datamover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/handler/metric"
	"github.com/varvebackup/varve/internal/reconcile"
)

// takeInterval is how often a handler looks again for objects that it may take, besides all events. What makes a volume accessible here
// may change without one.
const takeInterval = 30 * time.Second

// Taker takes objects for a node, as long as it has free places. It is a reconciler with one key: one pass at a time looks at all
// objects, so that a node never has more than its limit.
type Taker struct {
	*Mover

	mu sync.Mutex
	// taken has the objects that this process took and that its cache may still have as New.
	taken map[types.UID]bool
	limit clusterLimit
}

// waitingObject is an object that nobody has taken.
type waitingObject struct {
	object client.Object
	view   Object
}

// Reconcile takes what there are free places for.
func (t *Taker) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	current := t.Settings.Current(ctx)
	self, err := t.findNode(ctx, t.NodeName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := t.lookForHandlers(ctx); err != nil {
		return ctrl.Result{}, err
	}
	objects, err := t.listObjects(ctx, t.Cached, &current)
	if err != nil {
		return ctrl.Result{}, err
	}
	t.forgetTaken(objects)
	waiting, running, mine := t.count(&current, objects)
	t.measure(waiting, objects)
	if self == nil || !takesPods(self, current.Pod.Tolerations) {
		return ctrl.Result{RequeueAfter: takeInterval}, nil
	}
	places := current.PerNode(self.Labels) - mine
	again := takeInterval
	var refused []error
	for places > 0 && len(waiting) > 0 {
		next := choose(candidates(waiting), running)
		o := waiting[next]
		waiting = append(waiting[:next:next], waiting[next+1:]...)
		reachable, wait, err := t.isReachable(ctx, o.object, &o.view, self, &current)
		switch {
		case isAnswer(err):
			refused = append(refused, err)
			continue
		case err != nil:
			return ctrl.Result{}, err
		}
		if !reachable {
			if wait > 0 {
				again = min(again, wait)
			}
			continue
		}
		took, wait, err := t.takeWithin(ctx, &current, o)
		if took {
			t.remember(o.view.UID)
			running[o.view.Tenant]++
			places--
		}
		if refusal := new(refusedError); errors.As(err, &refusal) {
			refused = append(refused, refusal)
			continue
		}
		if err != nil {
			return reconcile.RetryConflict(ctrl.Result{}, err)
		}
		if wait > 0 { // the cluster's limit: no other object has more luck
			again = min(again, wait)
			break
		}
	}
	if len(refused) > 0 {
		t.Log.Error(refused[0], "some objects cannot be taken, and others are taken before them", "objects", len(refused))
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// refusedError is what the API server answers to the write of one object, such as for a policy. The others do not wait for that.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// isAnswer says that an error is the API server's answer to a request, and not that it is busy or does not answer.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	busy := apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err)
	return errors.As(err, &status) && !busy
}

// takeWithin takes an object if the cluster's limit has a place. Otherwise it says when to look again.
func (t *Taker) takeWithin(ctx context.Context, current *settings.Settings, o waitingObject) (took bool, wait time.Duration, err error) {
	if current.Concurrency.Cluster == 0 {
		took, err = t.take(ctx, o.object, func() bool { return true })
		return took, 0, err
	}
	held, wait, err := t.limit.acquire(ctx, t.Mover)
	if err != nil || !held {
		return false, wait, err
	}
	defer func() {
		if releaseErr := t.limit.release(ctx, t.Mover); err == nil {
			err = releaseErr
		}
	}()
	objects, err := t.listObjects(ctx, t.Live, current)
	if err != nil {
		return false, 0, err
	}
	all := 0
	for _, other := range objects {
		if isRunning(&other.view) {
			all++
		}
	}
	if all >= current.Concurrency.Cluster {
		return false, takeInterval, nil // the end of one of them is an event
	}
	if !t.limit.isHeld(t.Clock.Now()) {
		return false, time.Second, nil // the count took so long that it may be another's turn
	}
	took, err = t.take(ctx, o.object, func() bool { return t.limit.isHeld(t.Clock.Now()) })
	return took, 0, err
}

// take makes this handler the driver of an object. It reports false if the object is not there to be taken any more. If it was only written to,
// such as with what it waits for, it is still its turn, if it may be taken at all by then: the next one is younger.
func (m *Mover) take(ctx context.Context, o client.Object, may func() bool) (bool, error) {
	took, err := m.takeAsRead(ctx, o)
	if !apierrors.IsConflict(err) {
		return took, err
	}
	before, err := viewOf(o)
	if err != nil {
		return false, err
	}
	written, err := reconcile.Find(ctx, m.Live, before.NamespacedName, newObject(before.Kind))
	if err != nil || written == nil {
		return false, err
	}
	if v, err := viewOf(written); err != nil || v.UID != before.UID || !isWaiting(&v) || !may() {
		return false, err
	}
	if took, err = m.takeAsRead(ctx, written); apierrors.IsConflict(err) {
		return false, nil
	}
	return took, err
}

// takeAsRead takes an object unless somebody has changed it since it was read: then the error is a conflict.
func (m *Mover) takeAsRead(ctx context.Context, o client.Object) (bool, error) {
	v, err := viewOf(o)
	if err != nil {
		return false, err
	}
	change := v.unchanged()
	change.Phase, change.Driver, change.Accepted, change.Finalizer, change.Message = velerov2.PhaseAccepted, m.NodeName, m.Clock.Now(), true, ""
	change.Memory, change.Begins = memory{}, true
	err = m.write(ctx, o, change)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsConflict(err):
		return false, err
	case err != nil:
		err = fmt.Errorf("take %s %s: %w", v.Kind, v.NamespacedName, err)
		if isAnswer(err) {
			err = &refusedError{err}
		}
		return false, err
	}
	m.Measures.DataMovementStage(string(v.Kind), metric.StageWait, change.Accepted.Sub(v.Created))
	return true, nil
}

// isRunning says that an object has a place.
func isRunning(v *Object) bool {
	return !v.Phase.Ended() && v.Phase != velerov2.PhaseNew && v.Driver != ""
}

// isWaiting says that an object has no place and wants one.
func isWaiting(v *Object) bool {
	return v.Phase == velerov2.PhaseNew && v.Driver == "" && !v.Cancel && !v.Deleted
}

// count returns who waits, how many of each namespace run, and how many of those this handler drives.
func (t *Taker) count(current *settings.Settings, objects []waitingObject) (waiting []waitingObject, running map[string]int, mine int) {
	running = map[string]int{}
	for _, o := range objects {
		v := &o.view
		taken := t.taken[v.UID]
		switch {
		case taken || isRunning(v):
			running[v.Tenant]++
			if t.drives(v) {
				mine++
			}
		case isWaiting(v) && isServed(current, v) && t.unserved(v) == "":
			waiting = append(waiting, o)
		}
	}
	return waiting, running, mine
}

// drives says that an object has a place of this node.
func (t *Taker) drives(v *Object) bool {
	return t.taken[v.UID] || isRunning(v) && v.Driver == t.NodeName
}

// measure sets how many objects of each kind wait and run.
func (t *Taker) measure(waiting, objects []waitingObject) {
	for _, kind := range []datamove.Kind{datamove.Upload, datamove.Download} {
		wait, run := 0, 0
		for i := range waiting {
			if waiting[i].view.Kind == kind {
				wait++
			}
		}
		for i := range objects {
			if v := &objects[i].view; v.Kind == kind && t.drives(v) {
				run++
			}
		}
		t.Measures.DataMovements(string(kind), wait, run)
	}
}

func candidates(waiting []waitingObject) []Candidate {
	list := make([]Candidate, len(waiting))
	for i := range waiting {
		v := &waiting[i].view
		list[i] = Candidate{UID: v.UID, Tenant: v.Tenant, Created: v.Created}
	}
	return list
}

func (t *Taker) remember(uid types.UID) {
	if t.taken == nil {
		t.taken = map[types.UID]bool{}
	}
	t.taken[uid] = true
}

// forgetTaken forgets what the cache knows by now.
func (t *Taker) forgetTaken(objects []waitingObject) {
	still := map[types.UID]bool{}
	for _, o := range objects {
		if t.taken[o.view.UID] && o.view.Phase == velerov2.PhaseNew {
			still[o.view.UID] = true
		}
	}
	t.taken = still
}

// listObjects returns the objects that Varve serves, or has taken.
func (m *Mover) listObjects(ctx context.Context, from client.Reader, current *settings.Settings) ([]waitingObject, error) {
	var uploads velerov2.DataUploadList
	var downloads velerov2.DataDownloadList
	if err := from.List(ctx, &uploads); err != nil {
		return nil, fmt.Errorf("list DataUploads: %w", err)
	}
	if err := from.List(ctx, &downloads); err != nil {
		return nil, fmt.Errorf("list DataDownloads: %w", err)
	}
	var all []waitingObject
	add := func(o client.Object) {
		v, err := viewOf(o)
		watched := m.ObjectNamespaces == nil || slices.Contains(m.ObjectNamespaces, v.Namespace)
		if err == nil && watched && (v.Finalizer || isServed(current, &v)) { // an error is the Reconciler's to report
			all = append(all, waitingObject{o, v})
		}
	}
	for i := range uploads.Items {
		add(&uploads.Items[i])
	}
	for i := range downloads.Items {
		add(&downloads.Items[i])
	}
	return all, nil
}

func isServed(current *settings.Settings, v *Object) bool {
	return current.Serves(v.Namespace) && current.ServesMover(v.Mover)
}
