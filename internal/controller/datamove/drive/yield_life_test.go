//go:build controlplane

package drive

import (
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	testclock "k8s.io/utils/clock/testing"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// later moves the clock of the drivers that are started.
func (w *world) later(c *testclock.FakePassiveClock, by time.Duration) { c.SetTime(c.Now().Add(by)) }

// wait has the exposer make an object wait, or not any more.
func (w *world) wait(name, what string) {
	w.exposer.change(func() { w.exposer.waits[name] = what })
}

// Two uploads whose snapshots take long hold up no third one, and get places again when they are ready. At no time
// does a node have more pods than places.
func TestSlowPreparation_holdsNoPlace(t *testing.T) {
	t.Parallel()
	const limit = 2
	w := newWorld(t, "concurrency: {perNode: 2, cluster: 2}")
	clock := testclock.NewFakePassiveClock(time.Now())
	w.clock = clock
	h := w.follow()
	w.wait("slow-1", "a snapshot")
	w.wait("slow-2", "a snapshot")
	succeeds := w.report
	w.report = func(client.Object) *datamove.Report { return nil }
	w.nodeAndDriver()
	slow := []*velerov2.DataUpload{w.upload("slow-1"), w.upload("slow-2")}
	for _, o := range slow {
		w.untilSays(o, "a snapshot")
	}
	other := func(o *velerov2.DataUpload) { o.Spec.SourceNamespace = "other" }
	fast := []*velerov2.DataUpload{w.upload("fast-1", other), w.upload("fast-2", other)}
	w.later(clock, 2*time.Minute)
	for _, o := range fast {
		w.untilPhase(o, velerov2.PhaseInProgress)
	}
	// Both places are taken: who is ready waits, for longer than preparing may take.
	w.wait("slow-1", "")
	w.wait("slow-2", "")
	for _, o := range slow {
		w.until(o, func(v *Object) bool { return v.isReady() && v.Message == noPlace })
	}
	w.later(clock, time.Hour)
	for _, o := range slow {
		w.until(o, func(v *Object) bool { return v.isReady() && clock.Now().Sub(v.prepareBegan()) < time.Minute })
	}
	w.set(func() { w.report = succeeds })
	for _, o := range append(slow, fast...) {
		w.untilPhase(o, velerov2.PhaseCompleted)
	}
	h.end(t, len(slow)+len(fast))
	if h.mostDriven > limit || h.mostPods > limit || h.mostRunning > limit {
		t.Errorf("a node had %d places taken and %d pods, want %d", h.mostDriven, h.mostPods, limit)
	}
	w.nothingLeft()
}

// With one place, the uploads of one machine wait for each other: none needs the place of another one.
func TestSlowPreparation_ofAGroupEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "concurrency: {perNode: 1}")
	clock := testclock.NewFakePassiveClock(time.Now())
	w.clock = clock
	h := w.follow()
	w.wait("*", "the other disks to be taken")
	w.nodeAndDriver()
	group := []*velerov2.DataUpload{w.upload("root"), w.upload("data"), w.upload("logs")}
	for _, o := range group {
		w.until(o, func(v *Object) bool {
			w.later(clock, 2*time.Minute)
			return v.Phase == velerov2.PhaseAccepted && strings.Contains(v.Message, "the other disks")
		})
	}
	w.wait("*", "")
	for _, o := range group {
		w.untilPhase(o, velerov2.PhaseCompleted)
	}
	h.end(t, len(group))
	if h.mostPods > 1 {
		t.Errorf("%d pods at once, with one place", h.mostPods)
	}
	w.nothingLeft()
}

// What may give its place back is bounded: the next one holds its place, and the third one waits.
func TestSlowPreparation_isBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "concurrency: {perNode: 1, preparing: 1}")
	clock := testclock.NewFakePassiveClock(time.Now())
	w.clock = clock
	w.wait("*", "a snapshot")
	w.nodeAndDriver()
	first := w.upload("first")
	w.untilSays(first, "a snapshot")
	second := w.upload("second")
	w.later(clock, 2*time.Minute)
	w.until(first, isPrepared)
	w.untilSays(second, "a snapshot")
	third := w.upload("third")
	w.later(clock, 2*time.Minute)
	w.until(third, func(v *Object) bool { return v.Phase == velerov2.PhaseNew && v.Message == noPlace })
	w.until(second, isRunning)
	w.wait("*", "")
	for _, o := range []*velerov2.DataUpload{first, second, third} {
		w.untilPhase(o, velerov2.PhaseCompleted)
	}
	w.nothingLeft()
}
