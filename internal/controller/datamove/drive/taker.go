package drive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/metric"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/reconcile"
)

// takeInterval is how often the Taker looks again for objects that it may take, besides all events. What makes a volume
// accessible on a node may change without one.
const takeInterval = 30 * time.Second

// Taker gives the objects that wait free places on nodes. It is a reconciler with one key: one pass at a time looks at
// all objects, so that neither a node nor the cluster ever has more than its limit.
type Taker struct{ *Mover }

// openObject is an object that has not ended, or of which something is left to do.
type openObject struct {
	object client.Object
	view   Object
}

// candidate is an object that waits, and the nodes that may run its pod.
type candidate struct {
	openObject
	nodes []*corev1.Node
}

// Reconcile takes what there are free places for.
func (t *Taker) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	t.places.mu.Lock()
	defer t.places.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	current := t.Settings.Current(ctx)
	objects, err := t.listOpen(ctx, &current)
	if err != nil {
		return ctrl.Result{}, err
	}
	s, err := t.surveyNodes(ctx, &current)
	if err != nil {
		return ctrl.Result{}, err
	}
	taken := t.places.countTaken(objects, t.Clock.Now())
	free := s.freePlaces(taken)
	waiting, running := t.findWaiting(&current, objects)
	t.reportQueue(waiting, objects)
	round := &round{
		survey: s, free: free, running: running, left: placesLeft(&current, taken),
		again: takeInterval,
	}
	candidates, err := round.findCandidates(ctx, waiting)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := round.takeInTurn(ctx, candidates); err != nil {
		return reconcile.RetryConflict(ctrl.Result{}, err)
	}
	if len(round.refused) > 0 {
		t.Log.Error(round.refused[0], "some objects cannot be taken, and others are taken before them", "objects",
			len(round.refused))
	}
	return ctrl.Result{RequeueAfter: round.again}, nil
}

// round is one pass of the Taker.
type round struct {
	*survey
	// free has the free places of each node, running how many objects of each namespace have one or are prepared
	// without one, and left is how many more the cluster's limit allows.
	free    map[string]int
	running map[string]int
	left    int
	// refused is why some objects could not be taken.
	refused []error
	// again is when to look again at the latest.
	again time.Duration
}

// placesLeft returns how many objects may be taken by the cluster's limit. taken has the places of each node.
func placesLeft(current *settings.Settings, taken map[string]int) int {
	const noLimit = 1 << 30
	if current.Concurrency.Cluster == 0 {
		return noLimit
	}
	left := current.Concurrency.Cluster
	for _, n := range taken {
		left -= n
	}
	return left
}

// findCandidates returns the waiting objects for which a node has a free place. If no node has one, it makes no
// requests. If the API server stops answering, the candidates found so far are taken now, and the rest soon.
func (r *round) findCandidates(ctx context.Context, waiting []openObject) ([]candidate, error) {
	if len(r.free) == 0 || r.left <= 0 {
		return nil, nil
	}
	var found []candidate
	for _, o := range waiting {
		may, err := r.nodesFor(ctx, o.object, &o.view)
		switch {
		case isAnswer(err):
			r.refused = append(r.refused, err)
		case err != nil && len(found) == 0:
			return nil, err
		case err != nil:
			r.Log.Error(err, "some objects are looked at later")
			r.again = min(r.again, lookAgain)
			return found, nil
		case may.wait > 0:
			r.again = min(r.again, may.wait)
		case freestNode(may.nodes, r.free) != nil:
			found = append(found, candidate{o, may.nodes})
		}
	}
	return found, nil
}

// takeInTurn takes candidates, each in its turn, until no node that they may run on has a free place.
func (r *round) takeInTurn(ctx context.Context, candidates []candidate) error {
	for r.left > 0 && len(candidates) > 0 {
		next := choose(candidates, r.running)
		c := candidates[next]
		candidates = slices.Delete(candidates, next, next+1)
		node := freestNode(c.nodes, r.free)
		if node == nil {
			continue
		}
		r.places.giveTo(&c.view, node.Name, r.Clock.Now())
		took, err := r.takeObject(ctx, c.object, node.Name)
		refusal := new(refusedError)
		switch refused := errors.As(err, &refusal); {
		case err != nil && !refused:
			return err // it may have its place
		case !took:
			r.places.takeBack(c.view.UID)
			if refused {
				r.refused = append(r.refused, refusal)
			}
			continue
		}
		r.places.markWritten(c.view.UID)
		r.running[c.view.Tenant]++
		r.free[node.Name]--
		r.left--
	}
	return nil
}

// refusedError is what the API server answers to the write of one object, such as for a policy. The others do not wait
// for that.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// isAnswer says that an error is the API server's answer to a request, and not that it is busy or does not answer.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	busy := apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err)
	return errors.As(err, &status) && !busy
}

// takeObject gives an object a place on a node. It reports false if the object is not there to be taken any more. If
// it was only written to, such as with what it waits for, it is still its turn: the next one is younger.
func (m *Mover) takeObject(ctx context.Context, o client.Object, node string) (bool, error) {
	took, err := m.takeAsRead(ctx, o, node)
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
	if v, err := viewOf(written); err != nil || v.UID != before.UID || !isWaiting(&v) {
		return false, err
	}
	if took, err = m.takeAsRead(ctx, written, node); apierrors.IsConflict(err) {
		return false, nil
	}
	return took, err
}

// takeAsRead takes an object unless somebody has changed it since it was read: then the error is a conflict.
func (m *Mover) takeAsRead(ctx context.Context, o client.Object, node string) (bool, error) {
	v, err := viewOf(o)
	if err != nil {
		return false, err
	}
	now, begins := m.Clock.Now(), !v.isReady()
	change := v.unchanged()
	change.Driver, change.Message = node, ""
	if begins {
		change.Phase, change.Accepted, change.Finalizer = velerov2.PhaseAccepted, now, true
		change.Memory, change.Begins = memory{}, true
	} else {
		since := metav1.NewTime(now).Rfc3339Copy()
		change.Memory.Yielded, change.Memory.Ready, change.Memory.PrepareSince = nil, false, &since
	}
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
	if begins {
		m.Measures.Stage(string(v.Kind), metric.StageWait, now.Sub(v.Created))
	}
	return true, nil
}

// isRunning says that an object has a place.
func isRunning(v *Object) bool {
	return isTaken(v) && v.Memory.Yielded == nil
}

// isPrepared says that an object was taken and has given its place back.
func isPrepared(v *Object) bool { return isTaken(v) && v.Memory.Yielded != nil }

func isTaken(v *Object) bool {
	return !v.Phase.Ended() && v.Phase != velerov2.PhaseNew && v.Driver != ""
}

// isWaiting says that an object has no place and wants one.
func isWaiting(v *Object) bool {
	return (v.Phase == velerov2.PhaseNew && v.Driver == "" || v.isReady()) && !v.Cancel && !v.Deleted
}

// findWaiting returns who waits, and how many objects of each namespace have a place or are prepared without one.
func (t *Taker) findWaiting(current *settings.Settings, objects []openObject) ([]openObject, map[string]int) {
	var waiting []openObject
	running := map[string]int{}
	for _, o := range objects {
		v := &o.view
		switch {
		case t.places.nodeOf(v) != "":
			running[v.Tenant]++
		case v.isReady() && isWaiting(v), isWaiting(v) && isServed(current, v) && t.unserved(v) == "":
			waiting = append(waiting, o)
		case isPrepared(v):
			running[v.Tenant]++
		}
	}
	return waiting, running
}

// reportQueue tells the metrics how many objects of each kind wait and run.
func (t *Taker) reportQueue(waiting, objects []openObject) {
	for _, kind := range []datamove.Kind{datamove.Upload, datamove.Download} {
		wait, running := 0, map[string]int{}
		for i := range waiting {
			if waiting[i].view.Kind == kind {
				wait++
			}
		}
		for i := range objects {
			if v := &objects[i].view; v.Kind == kind && isRunning(v) {
				running[v.Driver]++
			}
		}
		t.Measures.Now(string(kind), wait, running)
	}
}

// listOpen returns the objects of which something is left to do and that Varve serves, or has taken. They are the
// cache's own: nobody may change them.
func (m *Mover) listOpen(ctx context.Context, current *settings.Settings) ([]openObject, error) {
	var all []openObject
	for _, kind := range []datamove.Kind{datamove.Upload, datamove.Download} {
		objects, err := m.listOpenOf(ctx, kind)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			v, err := viewOf(o)
			if err == nil && isOurs(current, &v) { // an error is the Reconciler's to report
				all = append(all, openObject{o, v})
			}
		}
	}
	return all, nil
}

// listOpenOf returns the objects of one kind of which something is left to do.
func (m *Mover) listOpenOf(ctx context.Context, kind datamove.Kind) ([]client.Object, error) {
	var objects []client.Object
	options := []client.ListOption{client.MatchingFields{openIndex: isOpen}, client.UnsafeDisableDeepCopy}
	if kind == datamove.Upload {
		var list velerov2.DataUploadList
		if err := m.Cached.List(ctx, &list, options...); err != nil {
			return nil, fmt.Errorf("list DataUploads: %w", err)
		}
		for i := range list.Items {
			objects = append(objects, &list.Items[i])
		}
		return objects, nil
	}
	var list velerov2.DataDownloadList
	if err := m.Cached.List(ctx, &list, options...); err != nil {
		return nil, fmt.Errorf("list DataDownloads: %w", err)
	}
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	return objects, nil
}

func isServed(current *settings.Settings, v *Object) bool {
	return current.Serves(v.Namespace) && current.ServesMover(v.Mover)
}

// isOurs says that Varve serves an object, or has taken it. Where Varve is the built-in data mover, another one may
// have taken it first: then it has no finalizer of Varve's.
func isOurs(current *settings.Settings, v *Object) bool {
	if v.Finalizer {
		return true // taken, or to be taken by Varve alone
	}
	if !isServed(current, v) {
		return false
	}
	waits := v.Phase == velerov2.PhaseNew && v.Driver == ""
	return v.Mover == datamove.Mover || waits || v.Phase == velerov2.PhaseCanceling && v.Memory.Ending != nil
}
