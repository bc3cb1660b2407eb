// Package errand runs what takes a controller long, such as looking into a bucket, outside of its workers.
//
// A pass of a reconciler starts an errand and returns; the errand's end brings the object's next pass, which takes the result. There is
// one errand for a key at a time, a limited number for each group, so that a server that hangs holds up its own errands alone, and a
// limited number in all. Each has a deadline, and all end with the manager. Results are in memory: after a restart everything is looked
// at again.
package errand

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Limits bound the errands of a Runner.
type Limits struct {
	// InAll and PerGroup are how many run at a time. The others wait.
	InAll, PerGroup int
	// Deadline is how long one may take from its beginning, unless RunFor says otherwise.
	Deadline time.Duration
}

// Runner runs errands with results of type R. It is safe for concurrent use.
type Runner[R any] struct {
	limits  Limits
	ended   chan event.GenericEvent
	slots   chan struct{}
	started chan struct{}   // closed when ctx is set
	ctx     context.Context //nolint:containedctx // the manager's
	errands sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	running map[types.NamespacedName]bool
	results map[types.NamespacedName]R
	groups  map[string]*group
}

// group is the places of a group. It is forgotten when nobody uses it.
type group struct {
	slots chan struct{}
	users int
}

// NewRunner returns a Runner, which the manager must run.
func NewRunner[R any](limits Limits) *Runner[R] {
	return &Runner[R]{
		limits: limits, ended: make(chan event.GenericEvent), slots: make(chan struct{}, limits.InAll), started: make(chan struct{}),
		running: map[types.NamespacedName]bool{}, results: map[types.NamespacedName]R{}, groups: map[string]*group{},
	}
}

// Start implements manager.Runnable. It returns when every errand has ended.
func (r *Runner[R]) Start(ctx context.Context) error {
	r.ctx = ctx
	close(r.started)
	<-ctx.Done()
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.errands.Wait()
	return nil
}

// Source tells a controller of the ends of errands: their keys.
func (r *Runner[R]) Source() source.Source {
	return source.Channel(r.ended, &handler.EnqueueRequestForObject{})
}

// Run starts do, unless an errand for the key runs or waits already. A result that nobody took is forgotten.
func (r *Runner[R]) Run(key types.NamespacedName, groupName string, do func(context.Context) R) {
	r.RunFor(r.limits.Deadline, key, groupName, do)
}

// RunFor is Run with another deadline.
func (r *Runner[R]) RunFor(deadline time.Duration, key types.NamespacedName, groupName string, do func(context.Context) R) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || r.running[key] {
		return
	}
	g := r.groups[groupName]
	if g == nil {
		g = &group{slots: make(chan struct{}, r.limits.PerGroup)}
		r.groups[groupName] = g
	}
	g.users++
	r.running[key] = true
	delete(r.results, key)
	r.errands.Go(func() {
		result, ok := r.perform(g, deadline, do)
		r.finish(key, groupName, result, ok)
	})
}

// perform waits for the places that an errand needs, and runs it. It returns false if the manager ends before.
func (r *Runner[R]) perform(g *group, deadline time.Duration, do func(context.Context) R) (result R, ok bool) {
	<-r.started
	for _, slots := range []chan struct{}{g.slots, r.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-r.ctx.Done():
			return result, false
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, deadline)
	defer cancel()
	result = do(ctx)
	return result, r.ctx.Err() == nil
}

// finish keeps the result, and tells the controller.
func (r *Runner[R]) finish(key types.NamespacedName, groupName string, result R, ok bool) {
	r.mu.Lock()
	delete(r.running, key)
	if ok {
		r.results[key] = result
	}
	g := r.groups[groupName]
	if g.users--; g.users == 0 {
		delete(r.groups, groupName)
	}
	r.mu.Unlock()
	if !ok {
		return
	}
	var about client.Object = &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	select {
	case r.ended <- event.GenericEvent{Object: about}:
	case <-r.ctx.Done():
	}
}

// Running says whether an errand for the key runs or waits.
func (r *Runner[R]) Running(key types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[key]
}

// Take returns the result of the key's errand, once.
func (r *Runner[R]) Take(key types.NamespacedName) (R, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	result, ok := r.results[key]
	delete(r.results, key)
	return result, ok
}
