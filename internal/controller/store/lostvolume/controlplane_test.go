//go:build controlplane

package lostvolume

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

const system = controlplane.SystemNamespace

// world is a cluster with the nodes a, down and here. The test plays their stores and Kubernetes' controller of
// volumes.
type world struct {
	*testing.T
	ns           string
	admin, varve client.Client
	clock        *testclock.FakePassiveClock
	stop         func()
}

// start runs the controller with the rights that it has in a cluster.
func (w *world) start(edit ...func(*ctrl.Options)) {
	w.Helper()
	mgr := cluster.Manager(w.T, controlplane.Controller.Restrict(), append(edit, func(o *ctrl.Options) {
		own := cache.ByObject{Namespaces: map[string]cache.Config{system: {}}}
		o.Cache.ByObject = map[client.Object]cache.ByObject{
			&longhornv1.Node{}: own, &longhornv1.InstanceManager{}: own, &longhornv1.Replica{}: own,
		}
	})...)
	err := Setup(mgr, Options{Namespace: system, Clock: w.clock, GivenUp: time.Minute, Interval: 50 * time.Millisecond})
	if err != nil {
		w.Fatal(err)
	}
	w.stop = controlplane.StartManager(w.T, mgr)
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) create(o client.Object) {
	w.Helper()
	w.must(w.admin.Create(w.Context(), o))
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: system, Name: name} }

// addStore plays a store with one disk.
func (w *world) addStore(node, state string) {
	w.Helper()
	n := &longhornv1.Node{ObjectMeta: meta(node)}
	n.Spec.Disks = map[string]longhornv1.DiskSpec{"default": {Type: longhornv1.DiskTypeFilesystem, Path: "/disk"}}
	m := &longhornv1.InstanceManager{ObjectMeta: meta(node), Spec: longhornv1.InstanceManagerSpec{NodeID: node}}
	w.create(n)
	w.create(m)
	controlplane.Update(w.T, w.varve, n, true, func(n *longhornv1.Node) {
		n.Status.DiskStatus = map[string]*longhornv1.DiskStatus{"default": {DiskUUID: "disk-" + node}}
	})
	w.setState(node, state)
}

func (w *world) setState(node, state string) {
	w.Helper()
	controlplane.Update(w.T, w.varve, &longhornv1.InstanceManager{ObjectMeta: meta(node)}, true,
		func(m *longhornv1.InstanceManager) { m.Status.CurrentState = state })
}

// addVolume makes all that a volume has, and a claim for it. Without a phase it has no PersistentVolume yet.
func (w *world) addVolume(node, disk, kind string, phase corev1.PersistentVolumePhase) (handle string) {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: kind + "-" + node}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim.Spec.Resources.Requests = size
	w.create(claim)
	handle = "pvc-" + string(claim.UID)
	volume := &longhornv1.Volume{ObjectMeta: meta(handle), Spec: longhornv1.VolumeSpec{BackingImage: "debian"}}
	volume.Annotations = map[string]string{names.ClaimAnnotation: w.ns + "/" + claim.Name}
	w.create(volume)
	w.create(&longhornv1.Replica{ObjectMeta: meta(handle), Spec: longhornv1.ReplicaSpec{
		VolumeName: handle, NodeID: node, DiskID: disk, BackingImage: "debian",
	}})
	if phase == "" {
		return handle
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: handle, Finalizers: []string{finalizer}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: w.ns, Name: claim.Name, UID: claim.UID},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: names.TopologyNode, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
				}}}},
			}},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: names.Driver, VolumeHandle: handle, VolumeAttributes: map[string]string{names.ContextDisk: disk},
			}},
		},
	}
	w.create(pv)
	controlplane.Update(w.T, w.admin, pv, true, func(pv *corev1.PersistentVolume) { pv.Status.Phase = phase })
	return handle
}

// deleteClaim deletes the claim of a volume, and plays Kubernetes' controllers, which release its volume.
func (w *world) deleteClaim(name, handle string) {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	w.must(w.admin.Patch(w.Context(), claim, client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"finalizers":null}}`))))
	w.must(client.IgnoreNotFound(w.admin.Delete(w.Context(), claim)))
	if err := w.admin.Get(w.Context(), client.ObjectKey{Name: handle}, &corev1.PersistentVolume{}); err == nil {
		controlplane.Update(w.T, w.admin, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: handle}}, true,
			func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased })
	}
}

// present returns which objects of a volume are there.
func (w *world) present(handle string) (all []string) {
	w.Helper()
	for what, o := range map[string]client.Object{
		"PersistentVolume": &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: handle}},
		"Volume":           &longhornv1.Volume{ObjectMeta: meta(handle)}, "Replica": &longhornv1.Replica{ObjectMeta: meta(handle)},
	} {
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o)
		if err == nil {
			all = append(all, what)
		} else if !apierrors.IsNotFound(err) {
			w.Fatal(err)
		}
	}
	return all
}

func (w *world) goes(what, handle string) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		// Kubernetes' controller of volumes lets a volume go that nobody uses.
		pv := &corev1.PersistentVolume{}
		err := w.admin.Get(w.Context(), client.ObjectKey{Name: handle}, pv)
		if err == nil && pv.DeletionTimestamp != nil && len(pv.Finalizers) == 1 && pv.Finalizers[0] != finalizer {
			pv.Finalizers = nil
			err = w.admin.Update(w.Context(), pv)
		}
		if left := w.present(handle); len(left) > 0 {
			return errors.Join(fmt.Errorf("%s still has %v", what, left), client.IgnoreNotFound(err))
		}
		return nil
	})
}

func (w *world) stays(what, handle string, want int) {
	w.Helper()
	if left := w.present(handle); len(left) != want {
		w.Errorf("%s has only %v", what, left)
	}
}

// A node that an administrator has given up, and a disk that was removed, keep no volume that nobody uses, and so no
// image. One that is only down keeps everything. The controller dies at each of its writes.
func TestControlPlane(t *testing.T) { //nolint:paralleltest // it has Varve's namespace to itself
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := &world{
		T: t, ns: cluster.Namespace(t), admin: cluster.Client(t, controlplane.Admin),
		varve: cluster.Client(t, controlplane.Controller), clock: testclock.NewFakePassiveClock(time.Now()),
	}
	w.addStore("gone", longhornv1.ManagerUnknown)
	w.addStore("down", longhornv1.ManagerUnknown)
	w.addStore("here", longhornv1.ManagerRunning)
	const bound = corev1.VolumeBound
	volumes := map[string]string{}
	for _, node := range []string{"gone", "down", "here"} {
		volumes["used-"+node] = w.addVolume(node, "disk-"+node, "used", bound)
		volumes["freed-"+node] = w.addVolume(node, "disk-"+node, "freed", bound)
		volumes["waiting-"+node] = w.addVolume(node, "disk-"+node, "waiting", "")
		volumes["unmade-"+node] = w.addVolume(node, "disk-"+node, "unmade", "")
		w.deleteClaim("freed-"+node, volumes["freed-"+node])
		w.deleteClaim("unmade-"+node, volumes["unmade-"+node])
	}
	volumes["freed-disk"] = w.addVolume("here", "disk-removed", "disk", bound)
	w.must(w.admin.Delete(w.Context(), &longhornv1.Node{ObjectMeta: meta("gone")}))
	w.deleteClaim("disk-here", volumes["freed-disk"])
	// The store had deleted all but the PersistentVolume when its node died.
	half := w.addVolume("gone", "disk-gone", "half", bound)
	w.deleteClaim("half-gone", half)
	for _, o := range []client.Object{
		&longhornv1.Replica{ObjectMeta: meta(half)}, &longhornv1.Volume{ObjectMeta: meta(half)},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: half}},
	} {
		w.must(w.admin.Delete(w.Context(), o))
	}
	w.start(controlplane.LoseAnswers(t))
	controlplane.Consistently(t, time.Second, func() error {
		for what, want := range map[string]int{"freed-gone": 3, "unmade-gone": 2, "freed-disk": 3} {
			if left := w.present(volumes[what]); len(left) != want {
				return fmt.Errorf("%s has only %v, although its place may come back", what, left)
			}
		}
		return nil
	})
	w.clock.SetTime(w.clock.Now().Add(2 * time.Minute))
	w.goes("a volume of the node that is gone", volumes["freed-gone"])
	w.goes("a volume that the node's store had nearly deleted", half)
	w.goes("a volume whose claim went before it was made", volumes["unmade-gone"])
	w.goes("a volume of the disk that is gone", volumes["freed-disk"])
	for _, node := range []string{"gone", "down", "here"} {
		w.stays("a volume in use on node "+node, volumes["used-"+node], 3)
		w.stays("a volume that a claim waits for on node "+node, volumes["waiting-"+node], 2)
	}
	for _, node := range []string{"down", "here"} {
		w.stays("a volume that its store deletes on node "+node, volumes["freed-"+node], 3)
		w.stays("a volume that was never made on node "+node, volumes["unmade-"+node], 2)
	}
	// The claim of the other one goes later.
	w.deleteClaim("used-gone", volumes["used-gone"])
	w.goes("a volume whose claim goes when the node is gone", volumes["used-gone"])

	// A node that comes back deletes its volumes itself.
	w.stop()
	w.deleteClaim("waiting-gone", volumes["waiting-gone"])
	w.setState("gone", longhornv1.ManagerRunning)
	w.start()
	w.clock.SetTime(w.clock.Now().Add(2 * time.Minute))
	controlplane.Consistently(t, time.Second, func() error {
		if left := w.present(volumes["waiting-gone"]); len(left) != 2 {
			return fmt.Errorf("a volume of a node that is back has only %v", left)
		}
		return nil
	})
	w.stop()
}
