//go:build controlplane

package virtualmachinesnapshot

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// The drivers of the tests: one with a class, one with two of which one is the default, one with two of which none is, and
// one without.
const (
	driverOne     = "one.csi.test"
	driverDefault = "default.csi.test"
	driverMany    = "many.csi.test"
	driverNone    = "none.csi.test"
)

// TestControlPlane runs the controller with the rights that it has in a cluster. The tests play the user, the handler, the
// snapshot controller and the storage.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	withoutKinds(newWorld(t))
	if err := cluster.InstallSnapshotKinds(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := cluster.Client(t, controlplane.Admin)
	for name, driver := range map[string]string{
		"one": driverOne, "default": driverDefault, "other": driverDefault, "many-a": driverMany, "many-b": driverMany,
	} {
		class := &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: driver,
			DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		}
		if name == "default" {
			class.Annotations = map[string]string{annotationDefaultClass: "true"}
		}
		if err := admin.Create(t.Context(), class); err != nil {
			t.Fatal(err)
		}
	}
	for name, run := range map[string]func(*world){
		"a guest that is frozen":                    frozen,
		"a guest without an agent":                  withoutAgent,
		"a guest that is thawed early":              thawedEarly,
		"a guest that is not to be frozen":          notToBeFrozen,
		"a handler that does not answer":            handlerSilent,
		"a machine that is stopped":                 stopped,
		"a stopped machine that starts":             startsMeanwhile,
		"a machine that restarts":                   restartsMeanwhile,
		"storage without snapshots":                 storageWithout,
		"several classes":                           severalClasses,
		"a deadline":                                deadline,
		"an error of the storage":                   storageError,
		"a deletion":                                deletion,
		"a deletion that leaves the content":        retained,
		"a deletion in the middle of the freeze":    deletedFrozen,
		"another controller in the middle":          restarted,
		"a VolumeSnapshot that somebody else made":  foreign,
		"a VolumeSnapshot that is deleted":          deletedMeanwhile,
		"a content that its controller did not use": leftover,
		"a machine that does not exist":             missing,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(newWorld(t))
		})
	}
}

// world is a namespace with a controller of its own.
type world struct {
	*testing.T
	ns                   string
	admin, user, handler client.Client
	// freezePatience and thawPatience are for the next start.
	freezePatience, thawPatience time.Duration
	stop                         func()
}

const node = "node-1"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		T: t, ns: cluster.Namespace(t), admin: cluster.Client(t, controlplane.Admin),
		user:    cluster.Client(t, controlplane.Plain),
		handler: cluster.Client(t, controlplane.HandlerOn(node)), thawPatience: 2 * time.Second,
	}
	w.start()
	return w
}

func (w *world) start() {
	w.Helper()
	mgr := cluster.Manager(w.T, controlplane.Controller.Restrict(), func(o *ctrl.Options) {
		o.Cache.DefaultNamespaces = map[string]cache.Config{w.ns: {}}
	})
	if err := Setup(mgr, Options{FreezePatience: w.freezePatience, ThawPatience: w.thawPatience}); err != nil {
		w.Fatal(err)
	}
	w.stop = controlplane.StartManager(w.T, mgr)
}

// restart stops the controller and starts another one.
func (w *world) restart() {
	w.Helper()
	w.stop()
	w.start()
}

func (w *world) must(errs ...error) {
	w.Helper()
	if err := errors.Join(errs...); err != nil {
		w.Fatal(err)
	}
}

func (w *world) create(o client.Object) {
	w.Helper()
	w.must(w.admin.Create(w.Context(), o))
}

func (w *world) delete(o client.Object) {
	w.Helper()
	w.must(client.IgnoreNotFound(w.admin.Delete(w.Context(), o)))
}

// claim makes a claim with a volume of a driver.
func (w *world) claim(name, driver string) {
	w.Helper()
	c := gen.Claim(gen.Meta(w.ns, name),
		func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = w.ns + "-" + name })
	w.create(c)
	w.create(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: c.Spec.VolumeName},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Namespace: w.ns, Name: name, UID: c.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name},
			},
		},
	})
}

// machine makes a machine that does not run, with a disk on each claim.
func (w *world) machine(claims ...string) *kubevirtv1.VirtualMachine {
	w.Helper()
	var disks []func(*kubevirtv1.VirtualMachineInstanceSpec)
	for _, c := range claims {
		disks = append(disks, gen.Disk(c, c))
	}
	vm := gen.VirtualMachine(gen.Meta(w.ns, "vm"), gen.Guest(disks...),
		gen.SetRunStrategy(kubevirtv1.RunStrategyHalted))
	w.create(vm)
	return vm
}

// run starts the machine.
func (w *world) run(vm *kubevirtv1.VirtualMachine) *kubevirtv1.VirtualMachineInstance {
	w.Helper()
	vmi := gen.VirtualMachineInstance(gen.Meta(w.ns, "vm"), vm.Spec.Template.Spec)
	w.create(vmi)
	controlplane.Update(w.T, cluster.Client(w.T, controlplane.Controller), vmi, true,
		func(i *kubevirtv1.VirtualMachineInstance) {
			i.Status.Phase, i.Status.NodeName = kubevirtv1.PhaseRunning, node
			i.Status.ActivePods = map[types.UID]string{"launcher": node}
		})
	return vmi
}

// running makes a machine that runs, with two disks.
func (w *world) running() (*kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineInstance) {
	w.Helper()
	w.claim("root", driverOne)
	w.claim("data", driverDefault)
	vm := w.machine("root", "data")
	return vm, w.run(vm)
}

// snapshot makes the snapshot "s" of the machine as a user.
func (w *world) snapshot(changes ...func(*vmsnapshotv1.VirtualMachineSnapshot)) *vmsnapshotv1.VirtualMachineSnapshot {
	w.Helper()
	s := gen.MachineSnapshot(gen.Meta(w.ns, "s"), changes...)
	w.must(w.user.Create(w.Context(), s))
	return s
}

// until waits until the snapshot is as check wants it.
func (w *world) until(s *vmsnapshotv1.VirtualMachineSnapshot, check func(*vmsnapshotv1.VirtualMachineSnapshotStatus) bool) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(s), s); err != nil {
			return err
		}
		if s.Status == nil || !check(s.Status) {
			return fmt.Errorf("not yet: %+v", s.Status)
		}
		return nil
	})
}

// asked waits until the handler is asked for something.
func (w *world) asked(s *vmsnapshotv1.VirtualMachineSnapshot, request vmsnapshotv1.QuiesceRequest) {
	w.Helper()
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool {
		return st.Quiesce != nil && st.Quiesce.Request == request
	})
	if s.Status.NodeName != node {
		w.Fatalf("node %q", s.Status.NodeName)
	}
}

// answers plays the handler.
func (w *world) answers(s *vmsnapshotv1.VirtualMachineSnapshot, state vmsnapshotv1.QuiesceState, message string) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		w.must(w.handler.Get(w.Context(), client.ObjectKeyFromObject(s), s))
		base := s.DeepCopy()
		s.Status.Quiesce.State, s.Status.Quiesce.Message = state, message
		return w.handler.Status().Patch(w.Context(), s, reconcile.MergeFrom(base))
	})
}

// made waits until the snapshot has VolumeSnapshots of these volumes, and of no others.
func (w *world) made(s *vmsnapshotv1.VirtualMachineSnapshot, volumes ...string) []*snapshotv1.VolumeSnapshot {
	w.Helper()
	var all []*snapshotv1.VolumeSnapshot
	controlplane.Eventually(w, func() error {
		all = w.volumeSnapshots()
		if len(all) != len(volumes) {
			return fmt.Errorf("%d VolumeSnapshots", len(all))
		}
		return nil
	})
	for _, volume := range volumes {
		name := "vmsnapshot-" + string(s.UID) + "-volume-" + volume
		if !slices.ContainsFunc(all, func(v *snapshotv1.VolumeSnapshot) bool { return v.Name == name }) {
			w.Fatalf("no VolumeSnapshot %s", name)
		}
	}
	return all
}

func (w *world) volumeSnapshots() []*snapshotv1.VolumeSnapshot {
	w.Helper()
	var list snapshotv1.VolumeSnapshotList
	w.must(w.admin.List(w.Context(), &list, client.InNamespace(w.ns)))
	var all []*snapshotv1.VolumeSnapshot
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

// takes plays the storage: the snapshot is taken, and cannot be used yet.
func (w *world) takes(v *snapshotv1.VolumeSnapshot, at time.Time) {
	w.Helper()
	controlplane.Update(w.T, w.admin, v, true, func(v *snapshotv1.VolumeSnapshot) {
		v.Status = &snapshotv1.VolumeSnapshotStatus{CreationTime: ptr.To(metav1.NewTime(at)), ReadyToUse: ptr.To(false)}
	})
}

// uploads plays the storage: the snapshot can be used.
func (w *world) uploads(v *snapshotv1.VolumeSnapshot) {
	w.Helper()
	controlplane.Update(w.T, w.admin, v, true,
		func(v *snapshotv1.VolumeSnapshot) { v.Status.ReadyToUse = ptr.To(true) })
}

// succeeds waits until the snapshot can be used, and checks what it says of the guest.
func (w *world) succeeds(s *vmsnapshotv1.VirtualMachineSnapshot, indications ...vmsnapshotv1.Indication) {
	w.Helper()
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool { return st.Phase == vmsnapshotv1.Succeeded })
	if !slices.Equal(s.Status.Indications, indications) || len(s.Status.SourceIndications) != len(indications) {
		w.Errorf("indications %v, want %v: %+v", s.Status.Indications, indications, s.Status.SourceIndications)
	}
	if !s.IsReady() || s.Status.NodeName != "" || condition(s,
		vmsnapshotv1.ConditionReady) != "True/Operation complete" ||
		condition(s, vmsnapshotv1.ConditionProgressing) != "False/Operation complete" {
		w.Errorf("%+v", s.Status)
	}
}

// fails waits until the snapshot has failed with these words and nothing is left of it.
func (w *world) fails(s *vmsnapshotv1.VirtualMachineSnapshot, words string) {
	w.Helper()
	w.until(s, func(st *vmsnapshotv1.VirtualMachineSnapshotStatus) bool { return st.Phase == vmsnapshotv1.Failed })
	if s.Status.Error == nil || !strings.Contains(*s.Status.Error.Message, words) {
		w.Errorf("error %+v, want %q", s.Status.Error, words)
	}
	if condition(s, vmsnapshotv1.ConditionFailure) != "True/Operation failed" || s.IsReady() {
		w.Errorf("%+v", s.Status)
	}
}

// nothingLeft waits until no VolumeSnapshot and no content is left.
func (w *world) nothingLeft(s *vmsnapshotv1.VirtualMachineSnapshot) {
	w.Helper()
	controlplane.Eventually(w, func() error {
		if n := len(w.volumeSnapshots()); n > 0 {
			return fmt.Errorf("%d VolumeSnapshots", n)
		}
		return w.isGone(w.content(s))
	})
}

func (w *world) content(s *vmsnapshotv1.VirtualMachineSnapshot) *vmsnapshotv1.VirtualMachineSnapshotContent {
	return &vmsnapshotv1.VirtualMachineSnapshotContent{ObjectMeta: gen.Meta(w.ns, "vmsnapshot-content-"+string(s.UID))}
}

func (w *world) isGone(o client.Object) error {
	err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%T %s is there: %w", o, o.GetName(), err)
}

func (w *world) gone(o client.Object) {
	w.Helper()
	controlplane.Eventually(w, func() error { return w.isGone(o) })
}

func condition(s *vmsnapshotv1.VirtualMachineSnapshot, kind vmsnapshotv1.ConditionType) string {
	for _, c := range s.Status.Conditions {
		if c.Type == kind {
			return string(c.Status) + "/" + c.Reason
		}
	}
	return ""
}
