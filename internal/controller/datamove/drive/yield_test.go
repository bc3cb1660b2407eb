package drive

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// slow is an upload that was accepted a while ago, and whose snapshot takes long.
func slow(since time.Duration) Input {
	in := base(velerov2.PhaseAccepted)
	in.Object.Accepted, in.MayYield = now.Add(-since), nil
	in.Exposed = &ExposeAnswer{Exposure: Exposure{Waiting: "a snapshot"}}
	return in
}

// What is prepared for longer than a minute gives its place to others, if it may.
func TestYield_whatTakesLongToPrepare(t *testing.T) {
	t.Parallel()
	if d := decide(slow(59 * time.Second)); d.Do != Write || d.Change.Memory.Yielded != nil {
		t.Errorf("after 59 s: %+v", d)
	}
	in := slow(time.Minute)
	if d := decide(in); d.Do != MayYield {
		t.Errorf("after a minute: %+v", d)
	}
	in.MayYield = ptr.To(false)
	if d := decide(in); d.Do != Write || d.Change.Memory.Yielded != nil {
		t.Errorf("it may not: %+v", d)
	}
	in.MayYield = ptr.To(true)
	d := decide(in)
	if d.Change.Memory.Yielded == nil || !strings.HasPrefix(d.Change.Message, "waiting for a snapshot, until ") {
		t.Errorf("it may: %+v", d)
	}
	v := in.Object
	v.Memory = d.Change.Memory
	if isRunning(&v) || isWaiting(&v) || !isPrepared(&v) {
		t.Error("it has given its place back, and is not ready")
	}
	in = slow(time.Hour)
	in.PrepareTimeout = 2 * time.Hour
	in.Exposed = ready()
	in.Pod = &PodState{Name: "du-u1", UID: "p1", Pinned: "node-a"}
	if d := decide(in); d.Do != Write || d.Change.Memory.Yielded != nil {
		t.Errorf("it has a pod: %+v", d)
	}
	in = slow(time.Second)
	in.Exposed.Until = now.Add(time.Minute)
	if d := decide(in); d.Do != MayYield {
		t.Errorf("the node of its consumer is not known: %+v", d)
	}
}

// What has given its place back waits for another one when it is ready, however long that takes, and makes no pod.
func TestYield_readyWaitsForAPlace(t *testing.T) {
	t.Parallel()
	in := slow(29 * time.Minute)
	in.Object.Memory.Yielded, in.Exposed = at(-28*time.Minute), ready()
	d := decide(in)
	m := d.Change.Memory
	if d.Do != Write || d.Change.Message != noPlace || !m.Ready || !m.PrepareSince.Time.Equal(now) || d.Again <= 0 {
		t.Errorf("it is ready: %+v", d)
	}
	in.Object.Memory, in.Object.Message = m, d.Change.Message
	if v := in.Object; isRunning(&v) || !isWaiting(&v) {
		t.Error("it does not wait for a place")
	}
	in.Now = now.Add(10 * time.Minute)
	if d := decide(in); d.Change.Memory != m || d.Change.Message != noPlace {
		t.Errorf("nothing has changed, and it is written: %+v", d.Change)
	}
	in.Now = now.Add(16 * time.Minute)
	d = decide(in)
	if !d.Change.Memory.PrepareSince.Time.Equal(in.Now) {
		t.Errorf("it will time out while it waits: %+v", d.Change)
	}
	// The API server does not answer the exposer once: that is no reason to end.
	in.Object.Memory = d.Change.Memory
	in.Now = in.Now.Add(14 * time.Minute)
	in.Exposed = &ExposeAnswer{Err: errors.New("no answer")}
	if d := decide(in); d.Change.Memory.Ending != nil || d.Change.Memory.Ready || d.Change.Memory.Yielded == nil {
		t.Errorf("an error that may pass: %+v", d.Change)
	}
	in.DriverNode.Gone = true
	if d := decide(in); d.Do == Place {
		t.Error("it has no place that was lost")
	}
}

// Thousands may wait in the queue. The Taker looks at all of them together when a place can have become free.
func TestQueue_isSeldomLookedAt(t *testing.T) {
	t.Parallel()
	in := base(velerov2.PhaseNew)
	for takers, want := range map[int]time.Duration{0: takeInterval, 1: queueInterval} {
		if in.Takers = takers; decide(in).Again != want {
			t.Errorf("%d nodes: it looks again after %s, want %s", takers, decide(in).Again, want)
		}
	}
}

// The bound holds also for what the cache does not show yet.
func TestYield_isBounded(t *testing.T) {
	t.Parallel()
	var p places
	var objects []openObject
	for _, uid := range []types.UID{"a", "b", "c"} {
		v := base(velerov2.PhaseAccepted).Object
		v.UID = uid
		objects = append(objects, openObject{view: v})
	}
	ask := func(uid types.UID, at time.Time) bool { return p.mayYield(objects, uid, 2, at) }
	if !ask("a", now) || !ask("b", now) || ask("c", now) || !ask("a", now) {
		t.Error("two of three may, and may again")
	}
	objects[0].view.Memory.Yielded = at(0)
	if later := now.Add(2 * placeMemory); !ask("c", later) || ask("b", later) {
		t.Error("what b noted was never written")
	}
	taken := p.countTaken(objects, now)
	if taken["node-a"] != 2 {
		t.Errorf("%v, and one has given its place back", taken)
	}
	p.giveTo(&objects[0].view, "node-a", now)
	if taken := p.countTaken(objects, now); taken["node-a"] != 3 {
		t.Errorf("%v, and a has got one again", taken)
	}
}

// A restore that waits for its consumer may give its place back before the Taker has seen that it has it. The place is
// free then.
func TestYield_atOnceFreesThePlace(t *testing.T) {
	t.Parallel()
	var p places
	v := base(velerov2.PhaseNew).Object
	p.giveTo(&v, "node-a", now)
	p.markWritten(v.UID)
	v = base(velerov2.PhaseAccepted).Object
	v.Memory.Yielded = at(0)
	if taken := p.countTaken([]openObject{{view: v}}, now); len(taken) > 0 {
		t.Errorf("%v, and it has given its place back", taken)
	}
	v.Memory.Ready = true
	if node := p.nodeOf(&v); node != "" {
		t.Errorf("it is ready, and has a place on %s", node)
	}
}

// An outage is no reason to begin with the preparation of more and more objects: they would all time out. The disk of a
// running machine keeps its place: its backup may be taken any moment, and holds what the guest overwrites.
func TestYield_notForAnOutageOrAMachine(t *testing.T) {
	t.Parallel()
	away, lost, machine := slow(20*time.Minute), slow(20*time.Minute), slow(20*time.Minute)
	away.Exposed, away.Repository.Ready = ready(), false
	lost.Location.Found = false
	lost.Object.OperationTimeout = time.Hour
	machine.Object.SnapshotType = velerov2.SnapshotMachineBackup
	for name, in := range map[string]Input{"outage": away, "location": lost, "machine": machine} {
		if d := decide(in); d.Do != Write || d.Change.Memory.Ending != nil {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
