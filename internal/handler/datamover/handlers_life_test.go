//go:build controlplane

package datamover

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// aheadClock is a clock that is ahead, and goes.
type aheadClock struct{ ahead atomic.Int64 }

func (c *aheadClock) Now() time.Time                  { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *aheadClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// tooEarly is a time after which no handler counts as away, however slow the machine is that runs the test: its own time counts, too.
const tooEarly = lostAfter / 4

// fleet is a world whose handlers have pods. The test plays the DaemonSet and the kubelets' probes, and puts the handlers' clock on.
type fleet struct {
	*world
	clock *aheadClock
	pokes int
}

func newFleet(t *testing.T, config string) *fleet {
	t.Helper()
	w := newWorld(t, config)
	f := &fleet{world: w, clock: &aheadClock{}}
	w.clock = f.clock
	return f
}

func handlerPodName(node string) string { return "varve-handler-" + node }

// podUp makes the pod of a node's handler, which is ready.
func (f *fleet) podUp(node string) {
	f.t.Helper()
	f.create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.varve, Name: handlerPodName(node)},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "varve-handler", Containers: []corev1.Container{{Name: "handler", Image: "varve"}}},
	})
	f.podReady(node, corev1.ConditionTrue)
}

// podReady sets what the kubelet's probes say. When they began to say so is by another clock, which is an hour late.
func (f *fleet) podReady(node string, ready corev1.ConditionStatus) {
	f.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.varve, Name: handlerPodName(node)}}
	controlplane.Update(f.t, f.admin, pod, true, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))}}
	})
}

func (f *fleet) podGone(node string) {
	f.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.varve, Name: handlerPodName(node)}}
	if err := f.admin.Delete(f.t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		f.t.Fatal(err)
	}
}

// pass lets time pass for all handlers and has the one of a node look again.
func (f *fleet) pass(d time.Duration, node string) {
	f.t.Helper()
	time.Sleep(3 * time.Second) // what has happened until now is seen
	f.clock.ahead.Add(int64(d))
	f.pokes++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.varve, Name: handlerPodName(node)}}
	controlplane.Update(f.t, f.admin, pod, false, func(p *corev1.Pod) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, "poke", fmt.Sprint(f.pokes)) })
}

// machineUpload makes a DataUpload of a disk of a machine that runs on a node. It waits for its backup when it is taken.
func (f *fleet) machineUpload(node string) *velerov2.DataUpload {
	f.t.Helper()
	instance := gen.VirtualMachineInstance(gen.Meta(f.ns, "web"), gen.Guest(gen.Disk("root", "data")))
	f.create(instance)
	controlplane.Update(f.t, cluster.Client(f.t, controlplane.Controller), instance, true, func(i *kubevirtv1.VirtualMachineInstance) { i.Status.NodeName = node })
	asked := datamove.MachineDisk{Machine: "web", Volume: "root", Tracker: "daily", ScratchClaim: "scratch", Group: "monday", Disks: 1}
	return f.upload("monday-root", func(o *velerov2.DataUpload) {
		o.Spec.SnapshotType, o.Spec.CSISnapshot, o.Spec.SourceNamespace, o.Spec.DataMoverConfig = velerov2.SnapshotMachineBackup, nil, f.ns, asked.Config()
	})
}

func (f *fleet) staysNew(o client.Object, why string) {
	f.t.Helper()
	controlplane.Consistently(f.t, 2*time.Second, func() error {
		if err := f.admin.Get(f.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if v, err := viewOf(o); err != nil || v.Driver != "" {
			return fmt.Errorf("%s has taken it, %s: %w", v.Driver, why, err)
		}
		return nil
	})
}

func (f *fleet) staysWith(o client.Object, driver, why string) {
	f.t.Helper()
	controlplane.Consistently(f.t, 2*time.Second, func() error {
		if err := f.admin.Get(f.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		if v, err := viewOf(o); err != nil || v.Driver != driver {
			return fmt.Errorf("%s drives it, %s: %w", v.Driver, why, err)
		}
		return nil
	})
}

// The machine's node is ready, and no handler runs on it: its pod was never made, or crashes.
func TestHandlerLoss_leavesNoMachineToItsNode(t *testing.T) {
	t.Parallel()
	for name, crashes := range map[string]bool{"there is no pod": false, "the pod is not ready": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "")
			silent, alive := f.node(), f.node()
			f.podUp(alive)
			if crashes {
				f.podUp(silent)
				f.podReady(silent, corev1.ConditionFalse)
			}
			f.handler(alive)
			o := f.machineUpload(silent)
			f.until(o, func(v *Object) bool { return v.Finalizer })
			f.pass(tooEarly, alive)
			f.staysNew(o, "before its node's handler was away for a minute")
			f.pass(lostAfter, alive)
			f.until(o, func(v *Object) bool { return v.Driver == alive })
		})
	}
}

// Only one node reaches the volume. Its kubelet runs the mover pod, whichever handler drives the object.
func TestHandlerLoss_podRunsWhereItsVolumeIs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	silent, alive := f.node(), f.node()
	f.podUp(alive)
	f.handler(alive)
	f.exposer.change(func() { f.exposer.affinity = nodeNamed(silent) })
	f.targetOn("data", map[string]string{annotationSelectedNode: silent})
	o := f.download("r1")
	f.until(o, func(v *Object) bool { return v.Finalizer })
	f.pass(lostAfter, alive)
	if v := f.untilPhase(o, velerov2.PhaseCompleted); v.Driver != alive || v.Node != silent {
		t.Errorf("%s drove it, on %s", v.Driver, v.Node)
	}
}

// The same, and its kubelet does not start the pod: it has no image either.
func TestHandlerLoss_isSaidAndHasADeadline(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "prepareTimeout: 5m")
	silent, alive := f.node(), f.node()
	f.podUp(alive)
	f.handler(alive)
	f.frozen = true
	f.exposer.change(func() { f.exposer.affinity = nodeNamed(silent) })
	f.targetOn("data", map[string]string{annotationSelectedNode: silent})
	o := f.download("r1")
	f.until(o, func(v *Object) bool { return v.Finalizer })
	f.pass(lostAfter, alive)
	f.untilSays(o, "no handler runs on node "+silent+", until ")
	f.pass(5*time.Minute, alive)
	f.until(o, func(v *Object) bool { return v.Memory.Ending != nil })
	f.set(func() { f.frozen = false })
	if v := f.untilPhase(o, velerov2.PhaseFailed); !strings.Contains(v.Message, "no handler runs on node "+silent) {
		t.Error(v.Message)
	}
	f.nothingLeft()
}

// A handler that dies for good leaves its objects to others in every phase. Their pods go on.
func TestHandlerLoss_anotherHandlerGoesOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hold func(*world)
		when func(*world, client.Object)
	}{
		"Accepted, the volume is not accessible": {
			func(w *world) { w.exposer.waits["*"] = "a snapshot" }, func(w *world, o client.Object) { w.untilSays(o, "waiting for a snapshot") },
		},
		"Accepted, the pod is pending": {func(w *world) { w.frozen = true }, func(w *world, o client.Object) { w.untilSays(o, "to run, until ") }},
		"InProgress": {
			func(w *world) { w.report = func(client.Object) *datamove.Report { return nil } },
			func(w *world, o client.Object) { w.untilPhase(o, velerov2.PhaseInProgress) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, "")
			succeeds := f.report
			f.set(func() { c.hold(f.world) })
			first, second := f.node(), f.node()
			f.podUp(first)
			stop := f.handler(first)
			o := f.upload("b1")
			c.when(f.world, o)
			f.podUp(second)
			f.handler(second)
			stop()
			f.podReady(first, corev1.ConditionFalse)
			f.pass(tooEarly, second)
			f.staysWith(o, first, "before its handler was away for a minute")
			f.podGone(first) // somebody looks after it
			f.pass(lostAfter+maxTurn, second)
			f.until(o, func(v *Object) bool { return v.Driver == second })
			f.set(func() { f.frozen, f.report = false, succeeds })
			f.exposer.change(func() { delete(f.exposer.waits, "*") })
			v := f.untilPhase(o, velerov2.PhaseCompleted)
			if v.Memory.Deaths > 0 || name == "InProgress" && v.Node != first {
				t.Errorf("%+v", v)
			}
			f.nothingLeft()
		})
	}
}

// A rolling update: the handler ends and its successor, which runs 20 s later, goes on. What is nearest to its node waits for it, too.
func TestHandlerLoss_rollingUpdateMovesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	f.set(func() { f.report = func(client.Object) *datamove.Report { return nil } })
	updated, other := f.node(), f.node()
	f.podUp(updated)
	stop := f.handler(updated)
	o := f.upload("b1")
	f.untilPhase(o, velerov2.PhaseInProgress)
	f.podUp(other)
	f.handler(other)
	stop()
	f.podReady(updated, corev1.ConditionFalse)
	near := f.machineUpload(updated)
	f.pass(10*time.Second, other)
	f.podGone(updated)
	f.pass(10*time.Second, other)
	f.podUp(updated)
	f.handler(updated)
	f.pass(10*time.Minute, other)
	f.staysWith(o, updated, "after its handler came back")
	if v := f.until(near, func(v *Object) bool { return v.Driver != "" }); v.Driver != updated {
		t.Errorf("%s took what is nearest to %s", v.Driver, updated)
	}
}

// A handler whose pod is said to be not ready, and who goes on all the same. It does not take back what another one has taken.
func TestHandlerLoss_ofOneThatGoesOnEndsWithOneDriver(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	succeeds := f.report
	f.set(func() { f.report = func(client.Object) *datamove.Report { return nil } })
	first, second := f.node(), f.node()
	f.podUp(first)
	f.handler(first)
	o := f.upload("b1")
	f.untilPhase(o, velerov2.PhaseInProgress)
	f.podUp(second)
	f.handler(second)
	f.podReady(first, corev1.ConditionFalse)
	f.pass(0, second)
	f.pass(lostAfter+maxTurn, second)
	f.until(o, func(v *Object) bool { return v.Driver == second })
	f.podReady(second, corev1.ConditionFalse) // neither is ready by now
	f.pass(lostAfter+maxTurn, first)
	f.staysWith(o, second, "who does not know better than the other one")
	f.podReady(first, corev1.ConditionTrue)
	f.podReady(second, corev1.ConditionTrue)
	f.set(func() { f.report = succeeds })
	if v := f.untilPhase(o, velerov2.PhaseCompleted); v.Driver != second || v.Node != first || v.Memory.Deaths > 0 {
		t.Errorf("%s, on %s, %+v", v.Driver, v.Node, v.Memory)
	}
	f.nothingLeft()
}

// The location is a claim that is in use on a node without a handler: the mover pod goes there, whoever drives it.
func TestHandlerLoss_podRunsWhereItsStorageIs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	label := "shelf-" + f.varve
	f.shelf(label, corev1.ReadWriteOnce)
	silent, alive := f.labelledNode(label), f.labelledNode(label)
	user := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.varve, Name: "maintenance", Labels: map[string]string{datamove.LabelStorage: f.storage.Label()}},
		Spec:       corev1.PodSpec{NodeName: silent, Containers: []corev1.Container{{Name: "x", Image: "x"}}},
	}
	if err := cluster.Client(t, controlplane.Controller).Create(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	f.podUp(alive)
	f.handler(alive)
	o := f.upload("b1", onShelf)
	f.pass(tooEarly, alive)
	f.staysNew(o, "before its node's handler was away for a minute")
	f.pass(lostAfter, alive)
	if v := f.untilPhase(o, velerov2.PhaseCompleted); v.Driver != alive || v.Node != silent {
		t.Errorf("%s drove it, on %s", v.Driver, v.Node)
	}
}
