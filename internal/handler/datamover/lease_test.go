//go:build controlplane

package datamover

import (
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/test/controlplane"
)

func TestClusterLimit_oneHandlerCountsAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	mgr := cluster.Manager(t, controlplane.Controller)
	clock := testingclock.NewFakePassiveClock(time.Now())
	w.clock = clock
	first, second := w.mover(mgr, "node-1"), w.mover(mgr, "node-2")
	var a, b clusterLimit
	acquire := func(l *clusterLimit, m *Mover, want bool) {
		t.Helper()
		if held, wait, err := l.acquire(t.Context(), m); err != nil || held != want || held == (wait > 0) {
			t.Fatalf("held %v, wait %s, %v; want %v", held, wait, err, want)
		}
	}
	acquire(&a, first, true)
	acquire(&b, second, false)
	if err := a.release(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	acquire(&b, second, true)
	// The holder dies: the Lease is free when nobody has changed it for its time, by the clock of who waits.
	acquire(&a, first, false)
	clock.SetTime(clock.Now().Add(leaseTime - time.Second))
	acquire(&a, first, false)
	if b.isHeld(clock.Now()) {
		t.Error("the holder would still take an object")
	}
	clock.SetTime(clock.Now().Add(time.Second))
	acquire(&a, first, true)
}
