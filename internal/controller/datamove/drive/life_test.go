//go:build controlplane

package drive

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/controlplane"
)

func TestDataUpload_fromBeginningToEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	node := w.node()
	w.driver()
	o := w.upload("b1-x")
	v := w.untilPhase(o, velerov2.PhaseCompleted)
	s := &o.Status
	if v.Driver != node || v.Node != node || s.SnapshotID != pointOf(o) || s.IncrementalBytes != 7 || s.DataMoverResult[datamove.ResultRepository] != "r1" || s.AcceptedTimestamp == nil || s.StartTimestamp == nil || s.CompletionTimestamp == nil || s.Message != "" {
		t.Errorf("%+v", s)
	}
	w.nothingLeft()
	repository := &velerov1.BackupRepository{}
	name := datamove.RepositoryName("app", datamove.Location{Namespace: w.ns, Name: "default"})
	if err := w.admin.Get(t.Context(), client.ObjectKey{Namespace: w.varve, Name: name}, repository); err != nil || repository.Spec.VolumeNamespace != "app" ||
		repository.Spec.RepositoryConfig[datamove.ConfigLocationNamespace] != w.ns {
		t.Errorf("%+v, %v", repository.Spec, err)
	}
	if !v.Finalizer {
		t.Error("nothing keeps it for its restore point")
	}
	w.delete(o)
	w.untilGone(o)
}

// A completed DataUpload stays until the controller has said what became of its restore point. The test plays the controller.
func TestDataUpload_staysUntilItsRestorePointIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.deleter = ControllerDeletes{}
	w.nodeAndDriver()
	o := w.upload("b1-x")
	w.untilPhase(o, velerov2.PhaseCompleted)
	w.delete(o)
	w.untilSays(o, "waiting for the restore point to be deleted: the controller has not looked at it yet")
	say := func(d datamove.PointDeletion) {
		t.Helper()
		controlplane.Update(t, w.admin, o, false, func(o *velerov2.DataUpload) {
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, datamove.AnnotationPointDeletion, d.Encode())
		})
	}
	say(datamove.PointDeletion{UID: o.UID, State: datamove.DeletionWaits, Message: "it is pinned"})
	w.untilSays(o, "waiting for the restore point to be deleted: it is pinned")
	say(datamove.PointDeletion{UID: "another", State: datamove.DeletionDone})
	w.untilSays(o, "the controller has not looked at it yet")
	say(datamove.PointDeletion{UID: o.UID, State: datamove.DeletionDone})
	w.untilGone(o)
}

func TestDataDownload_fromBeginningToEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	o := w.download("r1-x")
	time.Sleep(time.Second)
	w.target() // Velero makes the claim after the DataDownload
	v := w.untilPhase(o, velerov2.PhaseCompleted)
	w.exposer.change(func() {
		if !w.exposer.finished[o.UID] {
			t.Error("completed without being handed over")
		}
	})
	if v.Finalizer || o.Status.CompletionTimestamp == nil {
		t.Errorf("%+v", o.Status)
	}
	w.nothingLeft()
}

// The roles of deploy/rbac and the policies of deploy/admission allow all that the driver does for an object.
func TestDriver_rolesSuffice(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := newWorldIn(t, controlplane.SystemNamespace, "concurrency: {cluster: 1}")
	w.restricted = true
	w.target()
	w.nodeAndDriver()
	for _, o := range []client.Object{w.upload("b1"), w.download("r1")} {
		w.untilPhase(o, velerov2.PhaseCompleted)
		w.delete(o)
		w.untilGone(o)
	}
	w.set(func() { w.report = func(client.Object) *datamove.Report { return nil } })
	o := w.upload("b2")
	w.untilPhase(o, velerov2.PhaseInProgress)
	w.cancel(o)
	w.untilPhase(o, velerov2.PhaseCanceled)
	w.nothingLeft()
}

// Velero waits for nobody: it sets spec.cancel, and whatever it made is the mover's to remove. Upstream's defect 6: a cancel while
// Accepted took five minutes.
func TestCancel_inEveryPhase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config string
		hold   func(*world)
		when   func(*world, client.Object)
	}{
		"none": {"concurrency: {nodes: [{nodeSelector: {}, perNode: 0}]}", func(*world) {}, func(w *world, o client.Object) {
			w.until(o, func(v *Object) bool { return v.Finalizer })
		}},
		"Accepted, the volume is not accessible": {"", func(w *world) { w.exposer.waits["*"] = "a snapshot" }, func(w *world, o client.Object) { w.untilSays(o, "waiting for a snapshot, until ") }},
		"Accepted, the pod is pending":           {"", func(w *world) { w.frozen = true }, func(w *world, o client.Object) { w.untilSays(o, "to run, until ") }},
		"InProgress":                             {"", func(w *world) { w.report = func(client.Object) *datamove.Report { return nil } }, func(w *world, o client.Object) { w.untilPhase(o, velerov2.PhaseInProgress) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.config)
			w.nodeAndDriver()
			w.target()
			for _, create := range []func() client.Object{
				func() client.Object { return w.upload("b1-x") },
				func() client.Object { return w.download("r1-x") },
			} {
				w.set(func() { c.hold(w) })
				o := create()
				c.when(w, o)
				begun := time.Now()
				w.cancel(o)
				w.set(func() { w.frozen = false })
				v := w.untilPhase(o, velerov2.PhaseCanceled)
				if took := time.Since(begun); took > 10*time.Second {
					t.Errorf("%T took %s", o, took)
				}
				if v.Finalizer || !strings.Contains(v.Message, "spec.cancel") {
					t.Errorf("%+v", v)
				}
				if u, ok := o.(*velerov2.DataUpload); ok && u.Status.CompletionTimestamp == nil {
					t.Error("no completion")
				}
				w.exposer.change(func() {
					if w.exposer.disposed[o.GetUID()] == 0 {
						t.Errorf("%T: what it names is not disposed of", o)
					}
				})
				w.set(func() { c.hold(w) })
			}
			w.set(func() { w.frozen = false })
			w.nothingLeft()
		})
	}
}

func TestDeletion_ofARunningObjectCancelsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.report = func(client.Object) *datamove.Report { return nil }
	w.nodeAndDriver()
	o := w.upload("b1-x")
	w.untilPhase(o, velerov2.PhaseInProgress)
	w.delete(o)
	w.untilGone(o)
	w.nothingLeft()
}

// A DataUpload whose restore point is published is completed, so that the restore point is deleted with it.
func TestDataUpload_thatIsStoredIsNotCanceled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(*world, client.Object)
		says func(*world, client.Object)
	}{
		"canceled": {(*world).cancel, func(w *world, o client.Object) { w.untilPhase(o, velerov2.PhaseCompleted) }},
		"deleted":  {(*world).delete, func(w *world, o client.Object) { w.untilSays(o, "waiting for the restore point to be deleted") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			w.deleter = ControllerDeletes{}
			succeeds := w.report
			w.report = func(client.Object) *datamove.Report { return nil }
			w.node()
			stop := w.driver()
			o := w.upload("b1-x")
			w.untilPhase(o, velerov2.PhaseInProgress)
			stop()
			w.set(func() { w.report = succeeds })
			w.until(o, func(v *Object) bool { return v.Report != nil })
			c.end(w, o)
			w.driver()
			c.says(w, o)
		})
	}
}

// The driver is killed at each write that it makes for an object, before the write or right after it. The next one
// goes on.
func TestDriver_killedAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, kind := range []datamove.Kind{datamove.Upload, datamove.Download} {
		for _, made := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, write made %v", kind, made), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, "")
				w.target()
				w.node()
				const tooMany = 40
				for n := int64(1); ; n++ {
					if n == tooMany {
						t.Fatal("it never gets to the end")
					}
					left := &atomic.Int64{}
					left.Store(n)
					died := make(chan struct{})
					crash := sync.OnceFunc(func() { close(died) })
					w.wrap = func(c client.Client) client.Client { return crashing{c, left, made, crash} }
					stop := w.driver()
					var o client.Object
					if kind == datamove.Upload {
						o = w.upload(fmt.Sprintf("b%d", n))
					} else {
						o = w.download(fmt.Sprintf("r%d", n))
					}
					survived := false
					controlplane.Eventually(t, func() error {
						select {
						case <-died:
							return nil
						default:
						}
						if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
							return err
						}
						v, err := viewOf(o)
						if survived = v.Phase == velerov2.PhaseCompleted; !survived && err == nil {
							err = errors.New("neither dead nor complete")
						}
						return err
					})
					stop()
					if survived {
						if n < 6 {
							t.Errorf("only %d writes were tried", n)
						}
						break
					}
					w.wrap = func(c client.Client) client.Client { return c }
					stop = w.driver()
					w.untilPhase(o, velerov2.PhaseCompleted)
					stop()
				}
				w.nothingLeft()
			})
		}
	}
}

// Of many that take an object at once, one wins.
func TestTake_hasOneWinner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	mgr := cluster.Manager(t, controlplane.Controller)
	for n := range 5 {
		o := w.upload(fmt.Sprintf("b%d", n))
		var wins atomic.Int64
		var group sync.WaitGroup
		for i := range 20 {
			m := w.mover(mgr)
			group.Go(func() {
				took, err := m.takeObject(t.Context(), o.DeepCopy(), fmt.Sprintf("node-%d", i))
				if err != nil {
					t.Error(err)
				}
				if took {
					wins.Add(1)
				}
			})
		}
		group.Wait()
		if wins.Load() != 1 {
			t.Errorf("%d took it", wins.Load())
		}
	}
}

// What was read is old: the object says what it waits for by now, which is no reason to take a younger one; or it is
// another object, or has been canceled.
func TestTake_looksAgainAtWhatWasWrittenMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	m := w.mover(cluster.Manager(t, controlplane.Controller))
	noted := func(o *velerov2.DataUpload) {
		controlplane.Update(t, w.admin, o, false, func(o *velerov2.DataUpload) { o.Status.Message = "waiting for a place" })
	}
	for name, c := range map[string]struct {
		meanwhile func(o *velerov2.DataUpload)
		took      bool
	}{
		"noted": {noted, true},
		"taken": {func(o *velerov2.DataUpload) {
			controlplane.Update(t, w.admin, o, false, func(o *velerov2.DataUpload) {
				o.Status.Phase, o.Status.AcceptedByNode = velerov2.PhaseAccepted, "node-2"
			})
		}, false},
		"canceled": {func(o *velerov2.DataUpload) {
			controlplane.Update(t, w.admin, o, false, func(o *velerov2.DataUpload) { o.Spec.Cancel = true })
		}, false},
		"another one": {func(o *velerov2.DataUpload) {
			w.delete(o)
			w.upload(o.Name)
		}, false},
	} {
		o := w.upload("b-" + strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(name))
		read := o.DeepCopy()
		c.meanwhile(o)
		if took, err := m.takeObject(t.Context(), read, "node-1"); took != c.took || err != nil {
			t.Errorf("%s: %v, %v", name, took, err)
		}
		if c.took {
			w.until(o, func(v *Object) bool { return v.Driver == "node-1" && v.Message == "" })
		}
	}
}

// Somebody tries again by creating an ended object again, as kubectl shows it: what was noted on the other one comes
// with it.
func TestTake_forgetsWhatACopyBrings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	w.target()
	over := ended(velerov2.PhaseCompleted, time.Hour)
	notes := map[string]string{
		datamove.AnnotationDriver:  (memory{Pod: "p1", Ending: over, Finishing: &over.Since, Disposed: true}).encode(),
		datamove.AnnotationExposed: `{"version":1}`,
		datamove.AnnotationReport:  reportBy("p1", datamove.Succeeded).Encode(),
	}
	o := w.download("r1-x", func(o *velerov2.DataDownload) { o.Annotations = notes })
	w.untilPhase(o, velerov2.PhaseCompleted)
	w.exposer.change(func() {
		if !w.exposer.finished[o.UID] {
			t.Error("Completed, and nothing was restored")
		}
	})
	if o.Annotations[datamove.AnnotationExposed] != "" {
		t.Error("the exposer has got another object's note")
	}
	w.nothingLeft()
}

// TestManyUploads_takeTurnsAndLeaveNothing has the limit of a node alone.
func TestLimits_holdForManyObjects(t *testing.T) {
	t.Parallel()
	const perNode, inCluster, objects, tenants = 3, 4, 20, 4
	w := newWorld(t, fmt.Sprintf("concurrency: {perNode: %d, cluster: %d}", perNode, inCluster))
	nodes := []string{w.node(), w.node()}
	var all []*velerov2.DataUpload
	for i := range objects {
		all = append(all, w.upload(fmt.Sprintf("b%d", i), func(o *velerov2.DataUpload) {
			// One namespace has nearly all of them.
			o.Spec.SourceNamespace = "big"
			if i >= objects-tenants+1 {
				o.Spec.SourceNamespace = fmt.Sprintf("small-%d", i)
			}
		}))
	}
	w.driver()
	for _, o := range all {
		w.untilPhase(o, velerov2.PhaseCompleted)
	}
	for _, o := range all {
		before := 0
		for _, other := range all {
			if other.Status.AcceptedTimestamp.Before(o.Status.AcceptedTimestamp) {
				before++
			}
		}
		if strings.HasPrefix(o.Spec.SourceNamespace, "small") && before > objects/2 {
			t.Errorf("%s of %s was taken after %d others", o.Name, o.Spec.SourceNamespace, before)
		}
	}
	w.nothingLeft()
	w.set(func() {
		for _, n := range nodes {
			if w.most[n] > perNode {
				t.Errorf("%d on %s", w.most[n], n)
			}
		}
		if w.most[""] > inCluster || w.most[""] < 2 {
			t.Errorf("%d in the cluster", w.most[""])
		}
	})
}

func TestObjects_ofOtherMoversAreNotTouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	w.target()
	named := func(mover string) func(*velerov2.DataUpload) {
		return func(o *velerov2.DataUpload) { o.Spec.DataMover = mover }
	}
	others := []client.Object{
		w.upload("b1", named("")), w.upload("b2", named("velero")), w.upload("b3", named("somebody")),
		w.upload("b4", named("somebody"), func(o *velerov2.DataUpload) { o.Spec.Cancel = true }),
		w.upload("b5", func(o *velerov2.DataUpload) { o.Namespace = cluster.Namespace(t) }),
		w.download("r1", func(o *velerov2.DataDownload) { o.Spec.DataMover = "" }),
	}
	w.untilPhase(w.upload("mine"), velerov2.PhaseCompleted)
	w.untilPhase(w.upload("later"), velerov2.PhaseCompleted) // whoever would take the others has had the time that this one took
	for _, o := range others {
		version := o.GetResourceVersion()
		if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil || o.GetResourceVersion() != version {
			t.Errorf("%s was changed: %+v, %v", o.GetName(), o, err)
		}
	}
	// The settings count while the driver runs.
	controlplane.Update(t, w.admin, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.varve, Name: "varve"}}, false, func(m *corev1.ConfigMap) {
		m.Data["config.yaml"] += "\nbuiltIn: true"
	})
	w.untilPhase(others[0], velerov2.PhaseCompleted)
	w.untilPhase(others[1], velerov2.PhaseCompleted)
	w.untilPhase(others[5], velerov2.PhaseCompleted)
}

func TestSettings_thatAreBadChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	w.untilPhase(w.upload("b1"), velerov2.PhaseCompleted)
	controlplane.Update(t, w.admin, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.varve, Name: "varve"}}, false, func(m *corev1.ConfigMap) {
		m.Data["config.yaml"] = "namespaces: [nobody]\nsurprise: true"
	})
	time.Sleep(time.Second)
	w.untilPhase(w.upload("b2"), velerov2.PhaseCompleted)
}

func TestUnknownSnapshotType_failsWithWhatIsServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	o := w.upload("b1", func(o *velerov2.DataUpload) { o.Spec.SnapshotType = "Tape" })
	v := w.untilPhase(o, velerov2.PhaseFailed)
	if !strings.Contains(v.Message, "it serves CSI") || o.Status.CompletionTimestamp == nil || v.Finalizer {
		t.Errorf("%+v", o.Status)
	}
	w.target()
	d := w.download("r1", func(o *velerov2.DataDownload) { o.Spec.SnapshotID = "5f1d7c6a" })
	if v := w.untilPhase(d, velerov2.PhaseFailed); !strings.Contains(v.Message, "5f1d7c6a") {
		t.Error(v.Message)
	}
}

// What names nothing that can be is refused with the field, and whether it was canceled or not, all others go on.
func TestMisnamedObjects_failAndHoldUpNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "concurrency: {perNode: 2}")
	w.target()
	uploads := map[string]func(o *velerov2.DataUpload){
		`spec.sourcePVC "" is no`:    func(o *velerov2.DataUpload) { o.Spec.SourcePVC = "" },
		`spec.sourcePVC "a/b" is no`: func(o *velerov2.DataUpload) { o.Spec.SourcePVC = "a/b" },
		`spec.dataMoverConfig: storagePatience "long" is not a duration`: func(o *velerov2.DataUpload) {
			o.Spec.DataMoverConfig = map[string]string{datamove.ConfigStoragePatience: "long"}
		},
		`spec.operationTimeout "1d" is no`: func(o *velerov2.DataUpload) { o.Spec.OperationTimeout = velerov1.Duration{Invalid: "1d"} },
		`spec.sourceNamespace "" is no`:    func(o *velerov2.DataUpload) { o.Spec.SourceNamespace, o.Spec.Cancel = "", true },
		`spec.sourceNamespace "A b" is no`: func(o *velerov2.DataUpload) { o.Spec.SourceNamespace = "A b" },
	}
	made := map[string]*velerov2.DataUpload{}
	for want, edit := range uploads {
		made[want] = w.upload(fmt.Sprintf("bad-%d", len(made)), edit)
	}
	d := w.download("bad", func(o *velerov2.DataDownload) { o.Spec.TargetVolume.PVC = "" })
	good := w.upload("good")
	w.nodeAndDriver()
	w.untilPhase(good, velerov2.PhaseCompleted)
	for want, o := range made {
		if v := w.untilPhase(o, velerov2.PhaseFailed); !strings.Contains(v.Message, want) || v.Finalizer {
			t.Errorf("%s: %+v", want, o.Status)
		}
	}
	if v := w.untilPhase(d, velerov2.PhaseFailed); !strings.Contains(v.Message, `spec.targetVolume.pvc "" is no`) {
		t.Error(v.Message)
	}
}

// forbidding is a cluster with a webhook that lets nobody write the object of a name, because it is down.
type forbidding struct {
	client.Client
	name *atomic.Pointer[string]
}

// Patch implements client.Writer.
func (f forbidding) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.PatchOption) error {
	if name := f.name.Load(); name != nil && *name == o.GetName() {
		return apierrors.NewInternalError(errors.New("failed calling webhook: no endpoints available"))
	}
	return f.Client.Patch(ctx, o, patch, options...)
}

// The oldest one waits for a webhook. The others do not wait with it.
func TestTake_leavesWhatCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "concurrency: {perNode: 1, cluster: 2}")
	var name atomic.Pointer[string]
	w.wrap = func(c client.Client) client.Client { return forbidding{c, &name} }
	o := w.upload("oldest")
	name.Store(&o.Name)
	w.nodeAndDriver()
	w.untilPhase(w.upload("b1"), velerov2.PhaseCompleted)
	w.untilPhase(w.upload("b2"), velerov2.PhaseCompleted)
	name.Store(nil)
	w.untilPhase(o, velerov2.PhaseCompleted)
	w.nothingLeft()
}

// An object whose node is lost before its pod got there is taken by another one.
func TestNodeLoss_anotherNodeTakesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.exposer.waits["*"] = "a snapshot"
	first := w.node()
	w.driver()
	o := w.upload("b1")
	w.untilSays(o, "a snapshot")
	second := w.node()
	w.silence(first)
	w.until(o, func(v *Object) bool { return v.Driver == second })
	w.exposer.change(func() { delete(w.exposer.waits, "*") })
	if v := w.untilPhase(o, velerov2.PhaseCompleted); v.Node != second {
		t.Errorf("it ran on %s", v.Node)
	}
	w.nothingLeft()
}

// The pod was made and not scheduled when its node was lost: it is made anew for another node.
func TestNodeLoss_ofAPodThatIsPending(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.set(func() { w.frozen = true })
	first := w.node()
	w.driver()
	o := w.upload("b1")
	pod := w.untilPod(o, func(*corev1.Pod) bool { return true })
	second := w.node()
	w.silence(first)
	w.untilPod(o, func(p *corev1.Pod) bool { return p.UID != pod.UID })
	w.set(func() { w.frozen = false })
	if v := w.untilPhase(o, velerov2.PhaseCompleted); v.Node != second || v.Driver != second {
		t.Errorf("it ran on %s, with a place on %s", v.Node, v.Driver)
	}
	w.nothingLeft()
}

// A completed DataUpload is deleted when the node that it had a place on is lost.
func TestNodeLoss_afterTheDeletionOfACompletedUpload(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	first := w.node()
	w.driver()
	o := w.upload("b1")
	w.untilPhase(o, velerov2.PhaseCompleted)
	w.silence(first)
	w.delete(o)
	w.untilGone(o)
}

// Upstream's defect 4: an object whose node died stayed until the item's timeout.
func TestNodeLoss_withThePodFails(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"the Node is deleted": true, "the Node is not ready": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "")
			w.report = func(client.Object) *datamove.Report { return nil }
			first := w.node()
			w.driver()
			o := w.upload("b1", func(o *velerov2.DataUpload) { o.Spec.OperationTimeout.Duration = 5 * time.Second })
			w.untilPhase(o, velerov2.PhaseInProgress)
			w.node()
			w.silence(first)
			if gone {
				w.delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: first}})
			}
			v := w.untilPhase(o, velerov2.PhaseFailed)
			if !strings.Contains(v.Message, first) || o.Status.CompletionTimestamp == nil {
				t.Errorf("%+v", o.Status)
			}
			if gone {
				w.nothingLeft()
				return
			}
			// Nobody knows whether the pod runs: it is not removed by force, and what it uses stays.
			if !v.Finalizer || !strings.Contains(v.Message, "not disposed of") || !w.hasPod(o.UID) {
				t.Errorf("%+v", v)
			}
			w.set(func() { delete(w.deadNodes, first) })
			w.until(o, func(v *Object) bool {
				return !v.Finalizer && v.Phase == velerov2.PhaseFailed && !strings.Contains(v.Message, "not disposed of")
			})
			w.nothingLeft()
		})
	}
}

func TestPod_thatDisappearsIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.report = func(client.Object) *datamove.Report { return nil }
	w.nodeAndDriver()
	o := w.upload("b1")
	w.untilPhase(o, velerov2.PhaseInProgress)
	first := w.untilPod(o, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if err := w.admin.Delete(t.Context(), first, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	second := w.untilPod(o, func(p *corev1.Pod) bool { return p.UID != first.UID && p.Status.Phase == corev1.PodRunning })
	// The pod that was given up reports for nobody.
	late := datamove.Report{Outcome: datamove.Failed, Message: "late", Pod: first.UID}
	controlplane.Update(t, w.admin, o, false, func(o *velerov2.DataUpload) {
		o.Annotations[datamove.AnnotationReport] = late.Encode()
	})
	w.set(func() {
		w.report = func(o client.Object) *datamove.Report {
			return &datamove.Report{Outcome: datamove.Succeeded, SnapshotID: pointOf(o)}
		}
	})
	w.untilPhase(o, velerov2.PhaseCompleted)
	if second.Name != first.Name {
		t.Error("pods of an object have several names")
	}
	w.nothingLeft()
}

// A volume that one node alone reaches, which is closed: the object has a place on another one, and its pod waits for
// that node.
func TestPod_waitsForTheNodeOfItsVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.set(func() { w.frozen = true })
	closed := w.node()
	controlplane.Update(t, w.admin, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: closed}}, false, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	w.exposer.change(func() { w.exposer.affinity = nodeNamed(closed) })
	w.targetOn("data", map[string]string{annotationSelectedNode: closed})
	w.nodeAndDriver()
	o := w.download("r1")
	w.untilSays(o, "to run, until ")
	first := w.untilPod(o, func(*corev1.Pod) bool { return true })
	controlplane.Consistently(t, 2*time.Second, func() error {
		pod := &corev1.Pod{}
		if err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(first), pod); err != nil || pod.UID != first.UID {
			return fmt.Errorf("it was replaced: %w", err)
		}
		return nil
	})
	w.set(func() { w.frozen = false })
	if v := w.untilPhase(o, velerov2.PhaseCompleted); v.Node != closed {
		t.Errorf("it ran on %s", v.Node)
	}
	w.nothingLeft()
}

// Upstream's defect 5: a pod that was deleted while Accepted was missed for half an hour.
func TestPod_deletedWhileAcceptedIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.frozen = true
	w.nodeAndDriver()
	o := w.upload("b1")
	first := w.untilPod(o, func(*corev1.Pod) bool { return true })
	if err := w.admin.Delete(t.Context(), first, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	w.untilPod(o, func(p *corev1.Pod) bool { return p.UID != first.UID })
	w.set(func() { w.frozen = false })
	w.untilPhase(o, velerov2.PhaseCompleted)
}

func TestPod_thatDiesAgainAndAgainFailsWithItsLastWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.report = func(client.Object) *datamove.Report { return nil }
	w.nodeAndDriver()
	o := w.upload("b1")
	w.untilPhase(o, velerov2.PhaseInProgress)
	pod := w.untilPod(o, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	for deaths := int32(1); deaths < maxDeaths; deaths++ {
		controlplane.Update(t, w.admin, pod, true, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].RestartCount = deaths
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "bus error"}
		})
		w.untilSays(o, fmt.Sprintf("started again, %d of 4 times: Error: bus error", deaths))
	}
	controlplane.Update(t, w.admin, pod, true, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount = maxDeaths })
	if v := w.untilPhase(o, velerov2.PhaseFailed); !strings.Contains(v.Message, "died 5 times without a result: Error: bus error") {
		t.Error(v.Message)
	}
	w.nothingLeft()
}

// Upstream's defect 3: a pod that began to run while no agent looked was missed.
func TestPod_thatRanWhileNobodyLookedIsSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.frozen = true
	w.node()
	stop := w.driver()
	o := w.upload("b1")
	w.untilPod(o, func(*corev1.Pod) bool { return true })
	stop()
	w.set(func() { w.frozen = false })
	w.untilPod(o, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	w.driver()
	w.untilPhase(o, velerov2.PhaseCompleted)
}

// Upstream's defect 1: one slow snapshot stopped all other objects of its node, and their cancels.
func TestSlowVolumes_stopNothingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "concurrency: {perNode: 50}")
	w.nodeAndDriver()
	const slow = 30
	var all []*velerov2.DataUpload
	for i := range slow {
		name := fmt.Sprintf("slow-%d", i)
		w.exposer.change(func() { w.exposer.waits[name] = "a slow snapshot" })
		all = append(all, w.upload(name))
	}
	for _, o := range all {
		w.untilSays(o, "a slow snapshot")
	}
	begun := time.Now()
	w.untilPhase(w.upload("quick"), velerov2.PhaseCompleted)
	w.cancel(all[0])
	w.untilPhase(all[0], velerov2.PhaseCanceled)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

// Upstream's defect 7: an object that timed out had no completion and said nothing but that.
func TestPrepareTimeout_saysWhatWasMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "prepareTimeout: 20s")
	w.frozen = true
	w.nodeAndDriver()
	o := w.upload("b1")
	pod := w.untilPod(o, func(*corev1.Pod) bool { return true })
	controlplane.Update(t, w.admin, pod, true, func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available"}}
	})
	w.untilSays(o, "0/1 nodes are available")
	w.until(o, func(v *Object) bool { return v.Memory.Ending != nil })
	w.set(func() { w.frozen = false })
	v := w.untilPhase(o, velerov2.PhaseFailed)
	if !strings.Contains(v.Message, "0/1 nodes are available") || o.Status.CompletionTimestamp == nil {
		t.Errorf("%+v", o.Status)
	}
	w.nothingLeft()
}

// Upstream's defect 2: a volume that could not be handed over left its object InProgress for hours, and the volume nobody's.
func TestHandover_thatFailsIsRepeatedAndThenGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	w.target()
	w.exposer.change(func() {
		w.exposer.unbound["r1"], w.exposer.unbound["r2"] = errors.New("the API server is busy"), errclass.Errorf(errclass.Invalid, "the target is bound")
	})
	passing, final := w.download("r1"), w.download("r2")
	if v := w.untilPhase(final, velerov2.PhaseFailed); !strings.Contains(v.Message, "the target is bound") {
		t.Error(v.Message)
	}
	w.untilSays(passing, "the API server is busy, until ")
	w.exposer.change(func() { delete(w.exposer.unbound, "r1") })
	w.untilPhase(passing, velerov2.PhaseCompleted)
	w.nothingLeft()
}

func TestDisposal_thatHangsKeepsTheFinalizer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	w.exposer.change(func() {
		w.exposer.stuck["b1"], w.exposer.refuses["b1"] = true, errclass.Errorf(errclass.Invalid, "no snapshot")
	})
	o := w.upload("b1", func(o *velerov2.DataUpload) { o.Spec.OperationTimeout.Duration = 15 * time.Second })
	w.untilSays(o, "failed: no snapshot; waiting for the claim to be gone, until ")
	v := w.untilPhase(o, velerov2.PhaseFailed)
	if !v.Finalizer || !strings.Contains(v.Message, "no snapshot; not disposed of, and tried again: the claim to be gone") {
		t.Errorf("%+v", v)
	}
	completed := o.Status.CompletionTimestamp
	w.exposer.change(func() { delete(w.exposer.stuck, "b1") })
	w.until(o, func(v *Object) bool { return !v.Finalizer })
	if o.Status.Phase != velerov2.PhaseFailed || !o.Status.CompletionTimestamp.Equal(completed) || o.Status.Message != "no snapshot" {
		t.Errorf("%+v", o.Status)
	}
}

func TestLocation_isWaitedForAndNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	w.nodeAndDriver()
	late := w.upload("b1", func(o *velerov2.DataUpload) { o.Spec.BackupStorageLocation = "late" })
	never := w.upload("b2", func(o *velerov2.DataUpload) {
		o.Spec.BackupStorageLocation, o.Spec.OperationTimeout.Duration = "never", 2*time.Second
	})
	w.untilSays(late, "late to be created, until ")
	w.create(&velerov1.BackupStorageLocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "late"},
		Spec:       velerov1.BackupStorageLocationSpec{Provider: "aws", StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "b"}}},
	})
	w.untilPhase(late, velerov2.PhaseCompleted)
	if v := w.untilPhase(never, velerov2.PhaseFailed); !strings.Contains(v.Message, "BackupStorageLocation "+w.ns+"/never") {
		t.Error(v.Message)
	}
}
