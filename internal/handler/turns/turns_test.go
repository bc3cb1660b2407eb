package turns

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func request(namespace string) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: "vm"}}
}

// untilWaiting waits until that many passes wait for a place.
func untilWaiting(t *testing.T, turns *Turns, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		turns.mu.Lock()
		waiting := 0
		for _, queue := range turns.waiting {
			waiting += len(queue)
		}
		turns.mu.Unlock()
		if waiting == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d wait, want %d", waiting, n)
		}
	}
}

// The many machines of one namespace delay those of another one by one turn.
func TestTurns_goFromNamespaceToNamespace(t *testing.T) {
	t.Parallel()
	turns := New(1)
	begun, end, served := make(chan struct{}), make(chan struct{}), make(chan string, 100)
	first := turns.Reconciler(reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
		close(begun)
		<-end
		return ctrl.Result{}, nil
	}))
	errs := make(chan error, 100)
	pass := func(r reconcile.Reconciler, namespace string) {
		go func() {
			_, err := r.Reconcile(t.Context(), request(namespace))
			errs <- err
		}()
	}
	pass(first, "many")
	<-begun
	next := turns.Reconciler(reconcile.Func(func(_ context.Context, r ctrl.Request) (ctrl.Result, error) {
		served <- r.Namespace
		return ctrl.Result{}, nil
	}))
	for i := range 20 {
		pass(next, "many")
		untilWaiting(t, turns, i+1)
	}
	for i, namespace := range []string{"one", "two", "two"} {
		pass(next, namespace)
		untilWaiting(t, turns, 21+i)
	}
	close(end)
	for range 24 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	close(served)
	var order []string
	for namespace := range served {
		order = append(order, namespace)
	}
	if want := []string{"many", "one", "two", "many", "two", "many"}; !slices.Equal(order[:6], want) {
		t.Errorf("served %v first, want %v", order[:6], want)
	}
	if turns.free != 1 || len(turns.order) != 0 || len(turns.waiting) != 0 {
		t.Errorf("left: %+v", turns)
	}
}

// A pass that waits for a launcher has no place meanwhile, and gets one before it goes on.
func TestOutside_givesThePlaceToOthers(t *testing.T) {
	t.Parallel()
	const places, passes = 2, 50
	turns := New(places)
	answer := make(chan struct{})
	var inside, most, outside atomic.Int32
	work := func() {
		most.Store(max(most.Load(), inside.Add(1)))
		time.Sleep(time.Millisecond)
		inside.Add(-1)
	}
	r := turns.Reconciler(reconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
		work()
		Outside(ctx, func() {
			outside.Add(1)
			Outside(ctx, func() { <-answer }) // within another one it is nothing more
		})
		work()
		return ctrl.Result{}, nil
	}))
	errs := make(chan error, passes)
	for range passes {
		go func() {
			_, err := r.Reconcile(t.Context(), request("ns"))
			errs <- err
		}()
	}
	for deadline := time.Now().Add(10 * time.Second); outside.Load() < passes; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d passes wait outside, want %d", outside.Load(), passes)
		}
	}
	close(answer)
	for range passes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if most.Load() > places || turns.free != places {
		t.Errorf("%d passes were at %d places; %d are free", most.Load(), places, turns.free)
	}
}

// A pass that is cancelled while it waits takes no place with it.
func TestTurns_endOfTheProcessLosesNoPlace(t *testing.T) {
	t.Parallel()
	turns := New(1)
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	errs := make(chan error, 3)
	holder := turns.Reconciler(reconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
		close(begun)
		<-ctx.Done()
		Outside(ctx, func() {})
		return ctrl.Result{}, nil
	}))
	go func() {
		_, err := holder.Reconcile(ctx, request("a"))
		errs <- err
	}()
	<-begun
	never := turns.Reconciler(reconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
		return ctrl.Result{}, nil
	}))
	for i, namespace := range []string{"a", "b"} {
		go func() {
			_, err := never.Reconcile(ctx, request(namespace))
			errs <- err
		}()
		untilWaiting(t, turns, i+1)
	}
	cancel()
	for range 3 {
		if err := <-errs; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if turns.free != 1 || len(turns.order) != 0 || len(turns.waiting) != 0 {
		t.Errorf("left: %+v", turns)
	}
}

func TestOutside_withoutAPass(t *testing.T) {
	t.Parallel()
	called := false
	Outside(t.Context(), func() { called = true })
	if !called {
		t.Error("it was not called")
	}
}

// A call that ran into its own deadline costs the pass no place: there are never more passes than places.
func TestOutside_aCallThatTimesOutKeepsThePlacesBounded(t *testing.T) {
	t.Parallel()
	const passes = 20
	turns := New(1)
	var at, most atomic.Int64
	next := turns.Reconciler(reconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
		call, cancel := context.WithCancel(ctx)
		cancel()
		Outside(call, func() {})
		if n := at.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(time.Millisecond)
		at.Add(-1)
		return ctrl.Result{}, nil
	}))
	errs := make(chan error, passes)
	for range passes {
		go func() {
			_, err := next.Reconcile(t.Context(), request("ns"))
			errs <- err
		}()
	}
	for range passes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d passes at one place", most.Load())
	}
}
