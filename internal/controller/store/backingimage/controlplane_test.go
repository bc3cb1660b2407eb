//go:build controlplane

package backingimage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestControlPlane runs the controller with the rights that it has in a cluster. The tests play the stores, the kubelets
// and Kubernetes' own controllers of volumes.
func TestControlPlane(t *testing.T) { //nolint:paralleltest,tparallel // both serve Varve's namespace
	runScenarios(t)
}

// TestControlPlane_diesAtEachWrite is TestControlPlane with a controller that dies after a third of its writes.
func TestControlPlane_diesAtEachWrite(t *testing.T) { //nolint:paralleltest,tparallel // see above
	runScenarios(t, controlplane.LoseAnswers(t))
}

func runScenarios(t *testing.T, edit ...func(*ctrl.Options)) {
	t.Helper()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	mgr := cluster.Manager(t, controlplane.Controller.Restrict(), append(edit, func(o *ctrl.Options) {
		o.Cache.ByObject = CachedObjects(controlplane.SystemNamespace)
	})...)
	if err := Setup(mgr, Options{Namespace: controlplane.SystemNamespace, LauncherImage: "launcher:test"}); err != nil {
		t.Fatal(err)
	}
	controlplane.StartManager(t, mgr)
	for name, run := range map[string]func(*world){
		"a whole life":                wholeLife,
		"a source that fails":         sourceFails,
		"a source without a disk":     noDisk,
		"a source that is disturbed":  sourceDisturbed,
		"a node that dies":            nodeDies,
		"a clone of an image":         cloneOfImage,
		"an image of a volume":        imageOfAVolume,
		"an image of a restore point": imageOfARestorePoint,
		"a restore that fails":        restoreFails,
		"a restore that is deleted":   restoreDeleted,
		"a restore whose node dies":   restoreNodeDies,
		"an image that is uploaded":   uploaded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{
				T: t, admin: cluster.Client(t, controlplane.Admin), varve: cluster.Client(t, controlplane.Controller),
			}
			w.tag = cluster.Namespace(t) // a name that nobody else has
			t.Cleanup(w.leave)
			run(w)
		})
	}
}

// world has nodes and images of its own, which a tag tells from those of other tests.
type world struct {
	*testing.T
	tag string
	// varve writes statuses, which nobody else may.
	admin, varve client.Client
	made         []client.Object
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: w.tag + "-" + name}
}

func (w *world) create(o client.Object) {
	w.Helper()
	w.must(w.admin.Create(w.Context(), o))
	w.made = append(w.made, o)
}

// leave removes what the test has made, so that the next controller does not find it.
func (w *world) leave() {
	for _, o := range w.made {
		o.SetFinalizers(nil)
		err := w.admin.Patch(context.Background(), o, client.RawPatch("application/merge-patch+json",
			[]byte(`{"metadata":{"finalizers":null}}`)))
		err = errors.Join(client.IgnoreNotFound(err), client.IgnoreNotFound(w.admin.Delete(context.Background(), o)))
		if err != nil {
			w.Error(err)
		}
	}
}

// addStore plays the store of a node with one disk.
func (w *world) addStore(name string, available int64) (disk string) {
	w.Helper()
	disk = w.tag + "-" + name + "-disk"
	node := &longhornv1.Node{ObjectMeta: w.meta(name), Spec: longhornv1.NodeSpec{
		AllowScheduling: true, Tags: []string{w.tag},
		Disks: map[string]longhornv1.DiskSpec{
			"default-disk": {Type: longhornv1.DiskTypeFilesystem, Path: "/var/lib/varve-store", AllowScheduling: true},
		},
	}}
	manager := &longhornv1.InstanceManager{ObjectMeta: w.meta(name), Spec: longhornv1.InstanceManagerSpec{NodeID: name}}
	w.create(node)
	w.create(manager)
	controlplane.Update(w.T, w.varve, node, true, func(n *longhornv1.Node) {
		n.Status.DiskStatus = map[string]*longhornv1.DiskStatus{"default-disk": {
			DiskUUID: disk, StorageMaximum: 100 << 30, StorageAvailable: available,
			Conditions: []metav1.Condition{{
				Type: longhornv1.ConditionReady, Status: metav1.ConditionTrue, Reason: longhornv1.ReasonDiskReady,
				LastTransitionTime: metav1.Now(),
			}},
		}}
	})
	w.report(name, nil)
	return disk
}

// report plays what a store says of its copies.
func (w *world) report(name string, edit func(map[string]longhornv1.BackingImageV2CopyInfo)) {
	w.Helper()
	m := &longhornv1.InstanceManager{ObjectMeta: w.meta(name)}
	controlplane.Update(w.T, w.varve, m, true, func(m *longhornv1.InstanceManager) {
		m.Status.CurrentState, m.Status.IP, m.Status.HeartbeatTime = "running", "10.0.0.1", ptr.To(metav1.NowMicro())
		if m.Status.BackingImages == nil {
			m.Status.BackingImages = map[string]longhornv1.BackingImageV2CopyInfo{}
		}
		if edit != nil {
			edit(m.Status.BackingImages)
		}
	})
}

func (w *world) reportCopy(
	name, disk string, image *longhornv1.BackingImage, state longhornv1.BackingImageState, progress int,
) {
	w.Helper()
	w.report(name, func(all map[string]longhornv1.BackingImageV2CopyInfo) {
		info := longhornv1.BackingImageV2CopyInfo{
			Name: image.Name, UUID: image.Status.UUID, DiskUUID: disk, State: state, Progress: progress,
		}
		if state == longhornv1.StateReady {
			info.Size, info.RealSize, info.CurrentChecksum = 1_000_001, 4096, strings.Repeat("ab", 64)
		}
		all[disk+"/"+image.Status.UUID] = info
	})
}

func (w *world) dropCopy(name, disk string, image *longhornv1.BackingImage) {
	w.Helper()
	w.report(name, func(all map[string]longhornv1.BackingImageV2CopyInfo) { delete(all, disk+"/"+image.Status.UUID) })
}

func (w *world) newImage(name string) *longhornv1.BackingImage {
	return &longhornv1.BackingImage{ObjectMeta: w.meta(name), Spec: longhornv1.BackingImageSpec{
		SourceType: longhornv1.SourceDownload, NodeSelector: []string{w.tag}, MinNumberOfCopies: 1,
		SourceParameters: map[string]longhornv1.ParameterValue{
			longhornv1.ParameterURL: "https://images.lan/ubuntu-22.04.img",
		},
	}}
}

func wait[T client.Object](w *world, o T, check func(T) error) T {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		return check(o)
	})
	return o
}

func exists[T client.Object](T) error { return nil }

// gone waits until an object is away, and plays those who take it away.
func (w *world) gone(o client.Object) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		w.playCollectors(o)
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%T %s is still there (%w)", o, o.GetName(), err)
	})
}

// playCollectors takes away the finalizers of Kubernetes from a claim or a volume that is being deleted.
func (w *world) playCollectors(o client.Object) {
	if o.GetDeletionTimestamp() == nil || len(o.GetFinalizers()) == 0 ||
		!strings.HasPrefix(o.GetFinalizers()[0], "kubernetes.io/") {
		return
	}
	_ = w.admin.Patch(w.Context(), o, client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"finalizers":null}}`)))
}

// says waits until the condition Ready is so, with these words.
func (w *world) says(image *longhornv1.BackingImage, status metav1.ConditionStatus, reason, words string) {
	w.Helper()
	wait(w, image, func(i *longhornv1.BackingImage) error {
		c := meta.FindStatusCondition(i.Status.Conditions, longhornv1.ConditionReady)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, words) {
			return fmt.Errorf("condition %+v, want %s %s %q", c, status, reason, words)
		}
		return nil
	})
}

// hasDisks waits until these are the disks of the image.
func (w *world) hasDisks(image *longhornv1.BackingImage, disks ...string) {
	w.Helper()
	slices.Sort(disks)
	wait(w, image, func(i *longhornv1.BackingImage) error {
		var have []string
		for disk := range i.Spec.DiskFileSpecMap {
			have = append(have, disk)
		}
		slices.Sort(have)
		if diff := cmp.Diff(disks, have); diff != "" {
			return fmt.Errorf("disks: %s", diff)
		}
		return nil
	})
}

func (w *world) sourceMeta(image *longhornv1.BackingImage) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace, Name: names.SourceHandle(image.Status.UUID),
	}
}

func (w *world) sourceGone(image *longhornv1.BackingImage) {
	w.Helper()
	m := w.sourceMeta(image)
	w.gone(&corev1.Pod{ObjectMeta: m})
	w.gone(&corev1.PersistentVolumeClaim{ObjectMeta: m})
	w.gone(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: m.Name}})
}

// firstCopy starts an image, and plays the store until the source pod is there.
func (w *world) firstCopy(image *longhornv1.BackingImage, store, disk string) *corev1.Pod {
	w.Helper()
	w.hasDisks(image, disk)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyInProgress, "has not begun the copy")
	if image.Status.V2FirstCopyDisk != disk || image.Status.V2FirstCopyStatus != longhornv1.StateInProgress {
		w.Errorf("the first copy: %+v", image.Status)
	}
	if err := w.admin.Get(w.Context(), client.ObjectKey{
		Namespace: image.Namespace, Name: names.SourceHandle(image.Status.UUID),
	}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		w.Errorf("the source pod is made before there is a head: %v", err)
	}
	w.reportCopy(store, disk, image, longhornv1.StateInProgress, 0)
	return w.sourcePod(image, exists)
}

// sourcePod binds the source's claim, before which there is no pod, and waits for the pod.
func (w *world) sourcePod(image *longhornv1.BackingImage, check func(*corev1.Pod) error) *corev1.Pod {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: w.sourceMeta(image)}
	pod := &corev1.Pod{ObjectMeta: w.sourceMeta(image)}
	controlplane.Eventually(w.T, func() error {
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(claim), claim)
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err == nil {
				w.Error("the source pod is made before its claim is bound")
			}
			claim.Status.Phase = corev1.ClaimBound
			err = w.admin.Status().Update(w.Context(), claim)
		}
		if err != nil {
			return err
		}
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		return check(pod)
	})
	return pod
}

func (w *world) podEnds(pod *corev1.Pod, phase corev1.PodPhase, message string) {
	w.Helper()
	controlplane.Update(w.T, w.admin, pod, true, func(p *corev1.Pod) {
		p.Status.Phase = phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: sourceContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Message: message, ExitCode: map[corev1.PodPhase]int32{corev1.PodFailed: 1}[phase],
			}},
		}}
	})
}

func wholeLife(w *world) {
	one, two := w.addStore("one", 50<<30), w.addStore("two", 40<<30)
	image := w.newImage("ubuntu-22.04")
	w.create(image)
	pod := w.firstCopy(image, "one", one)
	w.checkSource(image, pod, one)
	w.reportCopy("one", one, image, longhornv1.StateInProgress, 40)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyInProgress, "40 % of the source were read")
	w.podEnds(pod, corev1.PodSucceeded, "")
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyInProgress, "read back and sealed")
	w.sourceGone(image)
	w.reportCopy("one", one, image, longhornv1.StateReady, 100)
	w.says(image, metav1.ConditionTrue, longhornv1.ReasonImageReady, "copies are ready on disk default-disk of node "+
		w.meta("one").Name)
	s := image.Status
	if s.Size != 1_000_001 || s.VirtualSize != s.Size || s.RealSize != 4096 || s.Checksum != strings.Repeat("ab", 64) ||
		s.ReadyCopies != 1 || s.V2FirstCopyStatus != longhornv1.StateReady {
		w.Errorf("status %+v", s)
	}

	volume := &longhornv1.Volume{ObjectMeta: w.meta("pvc"), Spec: longhornv1.VolumeSpec{
		Size: 1 << 30, BackingImage: image.Name, NumberOfReplicas: 1,
	}}
	replica := &longhornv1.Replica{ObjectMeta: w.meta("pvc"), Spec: longhornv1.ReplicaSpec{
		VolumeName: volume.Name, VolumeSize: 1 << 30, NodeID: w.meta("two").Name, DiskID: two, BackingImage: image.Name,
	}}
	w.create(volume)
	w.create(replica)
	w.hasDisks(image, one, two)
	w.reportCopy("two", two, image, longhornv1.StateReady, 100)
	wait(w, image, func(i *longhornv1.BackingImage) error {
		if i.Status.ReadyCopies != 2 {
			return fmt.Errorf("status %+v", i.Status)
		}
		return nil
	})

	w.must(w.admin.Delete(w.Context(), image))
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonInUse, volume.Name)
	w.must(w.admin.Delete(w.Context(), replica))
	w.must(w.admin.Delete(w.Context(), volume))
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonDeleting, "has a copy")
	w.hasDisks(image, one, two)
	w.dropCopy("one", one, image)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonDeleting, "node "+w.meta("two").Name+" has a copy")
	w.dropCopy("two", two, image)
	w.beat(image, "one", "two")
}

// beat plays heartbeats until an image is gone: a report from before the deletion says nothing.
func (w *world) beat(image *longhornv1.BackingImage, stores ...string) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		for _, store := range stores {
			w.report(store, nil)
		}
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(image), image); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there: %+v (%w)", image.Status.Conditions, err)
		}
		return nil
	})
}

func (w *world) checkSource(image *longhornv1.BackingImage, pod *corev1.Pod, disk string) {
	w.Helper()
	m := w.sourceMeta(image)
	claim := wait(w, &corev1.PersistentVolumeClaim{ObjectMeta: m}, exists)
	volume := wait(w, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}, exists)
	v := volume.Spec
	if v.CSI == nil || v.CSI.Driver != names.Driver || v.CSI.VolumeHandle != m.Name ||
		v.CSI.VolumeAttributes[names.ContextDisk] != disk || *v.VolumeMode != corev1.PersistentVolumeBlock ||
		v.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || v.ClaimRef.UID != claim.UID ||
		v.Capacity.Storage().Value() != handover.DeviceBytes || v.StorageClassName != "" {
		w.Errorf("volume %+v", v)
	}
	terms := v.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	if terms.Key != names.TopologyNode || terms.Values[0] != w.meta("one").Name {
		w.Errorf("affinity %+v", terms)
	}
	if claim.Spec.VolumeName != volume.Name || *claim.Spec.StorageClassName != "" || !metav1.IsControlledBy(claim, image) {
		w.Errorf("claim %+v", claim)
	}
	for _, o := range []client.Object{pod, claim, volume} {
		if o.GetLabels()[layout.LabelApp] != AppSource {
			w.Errorf("%T has the labels %v", o, o.GetLabels())
		}
	}
	c := pod.Spec.Containers[0]
	if *pod.Spec.AutomountServiceAccountToken || !metav1.IsControlledBy(pod, image) || c.Image != "launcher:test" ||
		*c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem ||
		len(c.SecurityContext.Capabilities.Add) > 0 || *pod.Spec.ActiveDeadlineSeconds != 86400 {
		w.Errorf("pod %+v", pod.Spec)
	}
	want := `{"type":"download","url":"https://images.lan/ubuntu-22.04.img"}`
	if diff := cmp.Diff([]corev1.EnvVar{{Name: handover.SourceVariable, Value: want}}, c.Env); diff != "" {
		w.Error(diff)
	}
}

func sourceFails(w *world) {
	disk := w.addStore("one", 50<<30)
	image := w.newImage("image")
	w.create(image)
	pod := w.firstCopy(image, "one", disk)
	w.podEnds(pod, corev1.PodFailed, "NotFound: https://images.lan: 404")
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyFailed,
		"attempt 1 failed: NotFound: https://images.lan: 404; the next one begins at ")
	w.hasDisks(image)
	w.sourceGone(image)
	w.dropCopy("one", disk, image)
	controlplane.Update(w.T, w.varve, image, true, func(i *longhornv1.BackingImage) {
		i.Status.FirstCopyRetryTime = ptr.To(metav1.NewTime(time.Now().Add(-time.Minute)))
	})
	w.must(w.admin.Patch(w.Context(), image, client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":{"minNumberOfCopies":2}}`)))) // an event, so that it looks now
	again := w.firstCopy(image, "one", disk)
	if again.UID == pod.UID {
		w.Error("the pod of the attempt that failed is used again")
	}
	w.podEnds(again, corev1.PodSucceeded, "")
	w.sourceGone(image)
	w.reportCopy("one", disk, image, longhornv1.StateReady, 100)
	w.says(image, metav1.ConditionTrue, longhornv1.ReasonImageReady, "1 of 2 copies that stay: every disk has a copy")
	if image.Status.FirstCopyMessage != "" {
		w.Errorf("status %+v", image.Status)
	}
}

// sourceDisturbed: what somebody deletes of a source is made again, and a claim of the same name gets a volume of its own.
func sourceDisturbed(w *world) {
	disk := w.addStore("one", 50<<30)
	image := w.newImage("image")
	w.create(image)
	pod := w.firstCopy(image, "one", disk)
	m := w.sourceMeta(image)
	claim := wait(w, &corev1.PersistentVolumeClaim{ObjectMeta: m}, exists)
	// The claim first: as long as it is bound, a pod that is deleted is made again.
	w.must(w.admin.Delete(w.Context(), claim))
	w.must(w.admin.Delete(w.Context(), pod, client.GracePeriodSeconds(0)))
	before := claim.UID
	controlplane.Eventually(w.T, func() error {
		for _, o := range []client.Object{
			&corev1.PersistentVolumeClaim{ObjectMeta: m}, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: m.Name}},
		} {
			if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); err == nil {
				w.playCollectors(o)
			}
		}
		volume := &corev1.PersistentVolume{}
		if err := w.admin.Get(w.Context(), client.ObjectKey{Name: m.Name}, volume); err != nil {
			return err
		}
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return err
		}
		if claim.UID == before || volume.Spec.ClaimRef.UID != claim.UID {
			return fmt.Errorf("claim %s, and before %s; the volume is that of %s", claim.UID, before,
				volume.Spec.ClaimRef.UID)
		}
		return nil
	})
	again := w.sourcePod(image, func(p *corev1.Pod) error {
		if p.UID == pod.UID {
			return fmt.Errorf("it is still the pod of before")
		}
		return nil
	})
	w.podEnds(again, corev1.PodSucceeded, "")
	w.sourceGone(image)
	w.reportCopy("one", disk, image, longhornv1.StateReady, 100)
	w.says(image, metav1.ConditionTrue, longhornv1.ReasonImageReady, "")
}

// nodeDies: the first copy is made on another node, although the pod on the dead one never ends.
func nodeDies(w *world) {
	one, two := w.addStore("one", 50<<30), w.addStore("two", 40<<30)
	image := w.newImage("image")
	w.create(image)
	pod := w.firstCopy(image, "one", one)
	// A pod that is on a node stays until the kubelet says that it has ended, and there is none.
	w.must(w.admin.SubResource("binding").Create(w.Context(), pod, &corev1.Binding{
		Target: corev1.ObjectReference{Kind: "Node", Name: "dead"},
	}))
	manager := &longhornv1.InstanceManager{ObjectMeta: w.meta("one")}
	controlplane.Update(w.T, w.varve, manager, true, func(m *longhornv1.InstanceManager) {
		m.Status.CurrentState, m.Status.BackingImages = longhornv1.ManagerUnknown, nil
	})
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyUnknown, "another disk is chosen at ")
	controlplane.Update(w.T, w.varve, image, true, func(i *longhornv1.BackingImage) {
		for _, c := range i.Status.DiskFileStatusMap {
			c.LastStateTransitionTime = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		}
	})
	w.must(w.admin.Patch(w.Context(), image, client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":{"minNumberOfCopies":2}}`)))) // an event, so that it looks now
	w.sourceGone(image)
	w.hasDisks(image, two)
	w.reportCopy("two", two, image, longhornv1.StateInProgress, 0)
	controlplane.Eventually(w.T, func() error {
		volume := &corev1.PersistentVolume{}
		if err := w.admin.Get(w.Context(), client.ObjectKey{Name: names.SourceHandle(image.Status.UUID)}, volume); err != nil {
			return err
		}
		if got := volume.Spec.CSI.VolumeAttributes[names.ContextDisk]; got != two {
			return fmt.Errorf("the volume is on %s, want %s", got, two)
		}
		return nil
	})
}

func noDisk(w *world) {
	image := w.newImage("image")
	w.create(image)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonNoDisk, "")
	disk := w.addStore("one", 50<<30)
	w.hasDisks(image, disk)
	w.must(w.admin.Delete(w.Context(), image))
	w.beat(image, "one")
}

// noPod checks that no source pod was made of an image.
func (w *world) noPod(image *longhornv1.BackingImage) {
	w.Helper()
	err := w.admin.Get(w.Context(), client.ObjectKey{
		Namespace: image.Namespace, Name: names.SourceHandle(image.Status.UUID),
	}, &corev1.Pod{})
	if !apierrors.IsNotFound(err) {
		w.Errorf("a source pod, or no answer: %v", err)
	}
}

// soon checks that something happens because of an event, and not only at the next look.
func (w *world) soon(what string, happens func()) {
	w.Helper()
	begin := time.Now()
	happens()
	if d := time.Since(begin); d > pollDisks*2/3 {
		w.Errorf("%s begins after %s", what, d)
	}
}

// cloneOfImage: a clone waits for the other image, and is made where that is, although another disk has more space.
func cloneOfImage(w *world) {
	one, two := w.addStore("one", 50<<30), w.addStore("two", 40<<30)
	base := w.newImage("base")
	base.Spec.DiskFileSpecMap = map[string]*longhornv1.BackingImageDiskFileSpec{two: {}}
	clone := w.newImage("clone")
	clone.Spec.SourceType = longhornv1.SourceClone
	clone.Spec.SourceParameters = map[string]longhornv1.ParameterValue{
		longhornv1.ParameterBackingImage: longhornv1.ParameterValue(base.Name),
	}
	w.create(clone)
	w.says(clone, metav1.ConditionFalse, longhornv1.ReasonSourceNotReady, "does not exist")
	w.create(base)
	pod := w.firstCopy(base, "two", two)
	w.podEnds(pod, corev1.PodSucceeded, "")
	w.sourceGone(base)
	w.reportCopy("two", two, base, longhornv1.StateReady, 100)
	w.soon("the clone of an image that got ready", func() { w.hasDisks(clone, two) })
	w.reportCopy("two", two, clone, longhornv1.StateInProgress, 99)
	w.says(clone, metav1.ConditionFalse, longhornv1.ReasonFirstCopyInProgress, "is made of the image "+base.Name)
	w.noPod(clone)
	w.reportCopy("two", two, clone, longhornv1.StateReady, 100)
	w.says(clone, metav1.ConditionTrue, longhornv1.ReasonImageReady, "")
	w.must(w.admin.Delete(w.Context(), base))
	w.dropCopy("two", two, base)
	w.beat(base, "one", "two")
	w.says(clone, metav1.ConditionTrue, longhornv1.ReasonImageReady, "")
	if clone.Spec.DiskFileSpecMap[one] != nil {
		w.Errorf("disks: %v", clone.Spec.DiskFileSpecMap)
	}
}

// imageOfAVolume: an image of a volume waits until the volume is detached, and is made where that is.
func imageOfAVolume(w *world) {
	_, two := w.addStore("one", 50<<30), w.addStore("two", 40<<30)
	volume := &longhornv1.Volume{
		ObjectMeta: w.meta("pvc"), Spec: longhornv1.VolumeSpec{Size: 1 << 30, NumberOfReplicas: 1},
	}
	replica := &longhornv1.Replica{ObjectMeta: w.meta("pvc"), Spec: longhornv1.ReplicaSpec{
		VolumeName: volume.Name, VolumeSize: 1 << 30, NodeID: w.meta("two").Name, DiskID: two,
	}}
	w.create(replica)
	w.create(volume)
	is := func(state, node string) {
		w.Helper()
		controlplane.Update(w.T, w.varve, volume, true, func(v *longhornv1.Volume) {
			v.Status.State, v.Status.CurrentNodeID = state, node
		})
	}
	is(longhornv1.VolumeAttached, "node-2")
	image := w.newImage("golden")
	image.Spec.SourceType = longhornv1.SourceExport
	image.Spec.SourceParameters = map[string]longhornv1.ParameterValue{
		longhornv1.ParameterVolumeName: longhornv1.ParameterValue(volume.Name),
	}
	w.create(image)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonSourceNotReady, "is attached to node node-2: stop what uses it")
	is(longhornv1.VolumeDetached, "")
	w.soon("the image of a volume that was detached", func() { w.hasDisks(image, two) })
	w.reportCopy("two", two, image, longhornv1.StateInProgress, 99)
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyInProgress, "is made of the volume "+volume.Name)
	w.noPod(image)
	w.must(w.admin.Delete(w.Context(), replica))
	w.must(w.admin.Delete(w.Context(), volume)) // an export does not keep it
	w.reportCopy("two", two, image, longhornv1.StateReady, 100)
	w.says(image, metav1.ConditionTrue, longhornv1.ReasonImageReady, "")
}

// uploaded: the source pod of an upload is made like another one, and the image says what it waits for.
func uploaded(w *world) {
	disk := w.addStore("one", 50<<30)
	image := w.newImage("image")
	image.Spec.SourceType, image.Spec.SourceParameters = longhornv1.SourceUpload, nil
	w.create(image)
	pod := w.firstCopy(image, "one", disk)
	want := fmt.Sprintf(`{"type":"upload","image":%q}`, image.Name)
	if got := pod.Spec.Containers[0].Env[0].Value; got != want || pod.Labels[LabelSource] != "upload" {
		w.Errorf("source %s, want %s; labels %v", got, want, pod.Labels)
	}
	w.report("one", func(all map[string]longhornv1.BackingImageV2CopyInfo) {
		key := disk + "/" + image.Status.UUID
		info := all[key]
		info.Message = "it waits for a command"
		all[key] = info
	})
	w.says(image, metav1.ConditionFalse, longhornv1.ReasonFirstCopyInProgress, "it waits for a command")
	w.podEnds(pod, corev1.PodSucceeded, "")
	w.sourceGone(image)
	w.reportCopy("one", disk, image, longhornv1.StateReady, 100)
	w.says(image, metav1.ConditionTrue, longhornv1.ReasonImageReady, "")
}
