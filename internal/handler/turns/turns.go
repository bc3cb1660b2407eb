// Package turns lets the passes of a reconciler take turns at a few places, one namespace after the other.
//
// A node's handler waits for what its tenants control: launchers that may accept a call and never answer, and volumes
// whose storage may hang. A pass that waits for them gives its place back with [Outside], so that the places are for
// those that have something to do. Passes that wait for a place get one in the order of their namespaces, so that the
// many machines of one namespace delay a machine of another one by one turn, not by their number.
//
// Reconcilers work on one object at a time, so the number of passes, and of calls that are waited for, is at most that
// of the objects on the node.
package turns

import (
	"context"
	"slices"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Turns are the places of one reconciler. They are safe for concurrent use.
type Turns struct {
	mu sync.Mutex
	// free is how many places nobody has. It is 0 while anybody waits.
	free int
	// waiting has the passes that wait, by namespace and in the order of their arrival. A namespace in which nobody waits
	// has no entry.
	waiting map[string][]chan struct{}
	// order has the namespaces in which somebody waits. The first one is next.
	order []string
}

// New returns that many places, none of them taken.
func New(places int) *Turns {
	return &Turns{free: places, waiting: map[string][]chan struct{}{}}
}

// place is what a pass has of its Turns. Only the pass uses it.
type place struct {
	turns *Turns
	// pass ends with the pass, and not with one of its calls.
	pass      context.Context //nolint:containedctx // the pass's, not a call's
	namespace string
	held      bool
}

type placeKey struct{}

// Reconciler returns next with each of its passes at a place.
func (t *Turns) Reconciler(next reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
		p := &place{turns: t, pass: ctx, namespace: r.Namespace}
		if err := p.take(); err != nil {
			return ctrl.Result{}, err
		}
		defer p.giveBack()
		return next.Reconcile(context.WithValue(ctx, placeKey{}, p), r)
	})
}

// Outside calls wait without a place, and returns when the pass has a place again, or has ended. ctx is that of the pass
// or follows from it, and may have ended; with any other, Outside only calls wait.
func Outside(ctx context.Context, wait func()) {
	p, _ := ctx.Value(placeKey{}).(*place)
	if p == nil || !p.held {
		wait()
		return
	}
	p.giveBack()
	wait()
	// A pass whose context has ended makes no more calls that count.
	_ = p.take()
}

// take waits for a place.
func (p *place) take() error {
	granted := p.turns.requestPlace(p.namespace)
	select {
	case <-granted:
		p.held = true
		return nil
	case <-p.pass.Done():
	}
	if !p.turns.cancelRequest(p.namespace, granted) {
		p.turns.release() // it was granted at the same moment
	}
	return context.Cause(p.pass)
}

func (p *place) giveBack() {
	if p.held {
		p.held = false
		p.turns.release()
	}
}

// requestPlace returns a channel that is closed once the caller has a place.
func (t *Turns) requestPlace(namespace string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	granted := make(chan struct{})
	if t.free > 0 {
		t.free--
		close(granted)
		return granted
	}
	if len(t.waiting[namespace]) == 0 {
		t.order = append(t.order, namespace)
	}
	t.waiting[namespace] = append(t.waiting[namespace], granted)
	return granted
}

// release passes a place on to the namespace whose turn it is.
func (t *Turns) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.free++
		return
	}
	namespace := t.order[0]
	t.order = t.order[1:]
	queue := t.waiting[namespace]
	close(queue[0])
	if len(queue) == 1 {
		delete(t.waiting, namespace)
		return
	}
	t.waiting[namespace] = queue[1:]
	t.order = append(t.order, namespace)
}

// cancelRequest withdraws a request. It reports false if the place was granted before.
func (t *Turns) cancelRequest(namespace string, granted chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting[namespace], granted)
	if i < 0 {
		return false
	}
	t.waiting[namespace] = slices.Delete(t.waiting[namespace], i, i+1)
	if len(t.waiting[namespace]) == 0 {
		delete(t.waiting, namespace)
		t.order = slices.DeleteFunc(t.order, func(n string) bool { return n == namespace })
	}
	return true
}
