//go:build controlplane

package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/controller/machine/changedblocktracking"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/stateclaim"
	"github.com/varvebackup/varve/internal/tracking"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// expandable is a storage class that allows expansion; "fast" does not.
const expandable = "expandable"

// oldSize is the size in bytes of the state claim of an older Varve for one disk of 10 GiB: without room for growth.
var oldSize = tracking.StateClaimSize([]int64{10 << 30})

// tracked makes a running tracked machine with one disk of 10 GiB, whose state claim has no room for more.
func (w *world) tracked(class string) (*kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineInstance, *corev1.Pod) {
	w.Helper()
	w.disk("root", "10Gi", class)
	vm := w.machine(kubevirtv1.RunStrategyHalted, selected)
	state := changedblocktracking.StateClaim(vm, oldSize, &class)
	w.create(w.kubelet, state)
	w.bind(state)
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyAlways) })
	vmi, pod := w.boot()
	w.overlaysUp(vmi)
	return vm, vmi, pod
}

func (w *world) disk(name, size, class string) {
	w.Helper()
	claim := gen.Claim(w.meta(name), gen.SetSize(size), gen.SetVolumeMode(corev1.PersistentVolumeFilesystem))
	claim.Spec.StorageClassName = &class
	w.create(w.user, claim)
	w.bind(claim)
}

// addDisk adds a disk to the machine, for its next start.
func (w *world) addDisk(class string) {
	w.Helper()
	w.disk("more", "10Gi", class)
	w.edit(func(s *kubevirtv1.VirtualMachineInstanceSpec) { gen.Disk("more", "more")(s) })
}

// growDisk plays the storage, which has expanded the machine's disk.
func (w *world) growDisk() {
	w.Helper()
	root := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta("root")}
	controlplane.Update(w.T, w.kubelet, root, true, func(c *corev1.PersistentVolumeClaim) {
		c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Ti")}
	})
}

// held waits until the instance waits for this reason, and returns the message.
func (w *world) held(reason string, says ...string) string {
	w.Helper()
	var message string
	w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		c := condition.Find(i.Status.Conditions, kubevirtv1.ConditionSynchronized)
		if c == nil || c.Reason != reason || i.Status.Phase != kubevirtv1.PhasePending {
			return fmt.Errorf("phase %s, %+v, want %s", i.Status.Phase, c, reason)
		}
		for _, words := range says {
			if !strings.Contains(c.Message, words) {
				return fmt.Errorf("%q does not say %q", c.Message, words)
			}
		}
		message = c.Message
		return nil
	})
	return message
}

// elapses makes the step that the instance waits in as old as its deadline.
func (w *world) elapses(step stateclaim.Step) {
	w.Helper()
	vmi := w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		if g := stateclaim.GrowthOf(i.Annotations); g.Step != step {
			return fmt.Errorf("growth %+v, want step %s", g, step)
		}
		return nil
	})
	controlplane.Update(w.T, w.varve, vmi, false, func(i *kubevirtv1.VirtualMachineInstance) {
		g := stateclaim.GrowthOf(i.Annotations)
		annotations, err := stateclaim.Begin(g.Step, g.Since.Add(-time.Hour), g.Refusal).Write(i.Annotations)
		if err != nil {
			w.Fatal(err)
		}
		i.Annotations = annotations
	})
}

func (w *world) secondClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(layout.SecondStatePVC("vm"))}
}

// stateMounts returns the claims that a launcher pod mounts for overlays: where they are, and where they move from.
func stateMounts(pod *corev1.Pod) (now, previous string) {
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		for _, v := range pod.Spec.Volumes {
			switch {
			case v.Name != m.Name || v.PersistentVolumeClaim == nil:
			case m.MountPath == layout.StateDir:
				now = v.PersistentVolumeClaim.ClaimName
			case m.MountPath == layout.PreviousStateDir:
				previous = v.PersistentVolumeClaim.ClaimName
			}
		}
	}
	return now, previous
}

func (w *world) mounts(pod *corev1.Pod, now, previous string) {
	w.Helper()
	if n, p := stateMounts(pod); n != now || p != previous {
		w.Errorf("the launcher pod has the overlays on %q, and moves them from %q; want %q and %q", n, p, now, previous)
	}
}

// addedDiskExpands: the claim is expanded, and only its file system is left to the kubelet.
func addedDiskExpands(w *world) {
	vm, vmi, pod := w.tracked(expandable)
	w.addDisk(expandable)
	vmi = w.next(vmi, pod)
	before := wait(w, w.stateClaim(), requested(1<<30))
	w.held(virtualmachineinstance.ReasonStateClaimExpanding, layout.StatePVC("vm"), "until")
	controlplane.Update(w.T, w.kubelet, before, true, func(c *corev1.PersistentVolumeClaim) {
		c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
	})
	pod = w.launcher(vmi)
	w.mounts(pod, layout.StatePVC("vm"), "")
	if after := wait(w, w.stateClaim(), exists); after.UID != before.UID || after.DeletionTimestamp != nil {
		w.Errorf("the claim was replaced: %+v", after.ObjectMeta)
	}
	w.gone(w.secondClaim())
	w.event(vm, changedblocktracking.ReasonClaimExpanded)
	w.boot()
}

// requested waits until a claim requests at least this many bytes.
func requested(bytes int64) func(*corev1.PersistentVolumeClaim) error {
	return func(c *corev1.PersistentVolumeClaim) error {
		if got := c.Spec.Resources.Requests.Storage().Value(); got < bytes {
			return fmt.Errorf("%d bytes requested, want %d", got, bytes)
		}
		return nil
	}
}

// grownDiskExpands: the storage expands the claim while nobody mounts it.
func grownDiskExpands(w *world) {
	_, vmi, pod := w.tracked(expandable)
	w.growDisk()
	vmi = w.next(vmi, pod)
	state := wait(w, w.stateClaim(), requested(tracking.StateClaimRequest([]int64{1 << 40})))
	w.held(virtualmachineinstance.ReasonStateClaimExpanding)
	w.restart()
	uid := state.UID
	w.bind(state)
	w.mounts(w.launcher(vmi), layout.StatePVC("vm"), "")
	if after := wait(w, w.stateClaim(), exists); after.UID != uid {
		w.Error("the claim was replaced")
	}
	// Every start has the whole time: nothing is left of this one.
	w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		if g := stateclaim.GrowthOf(i.Annotations); g.Step != stateclaim.NoStep {
			return fmt.Errorf("growth %+v", g)
		}
		return nil
	})
}

// addedDiskMoves: the overlays move to a larger claim, and to one with the first name when that is too small, too.
func addedDiskMoves(w *world) {
	vm, vmi, pod := w.tracked("fast")
	w.addDisk("fast")
	vmi = w.next(vmi, pod)
	second := wait(w, w.secondClaim(), requested(tracking.StateClaimRequest([]int64{10 << 30, 10 << 30})))
	first := wait(w, w.stateClaim(), exists)
	if second.Annotations[layout.AnnotationMovesFrom] != string(first.UID) || *second.Spec.StorageClassName != "fast" {
		w.Errorf("second claim %+v", second)
	}
	w.held(virtualmachineinstance.ReasonStateClaimMoving, layout.SecondStatePVC("vm"), "no volume")
	w.restart()
	w.bind(second)
	pod = w.launcher(vmi)
	w.mounts(pod, layout.SecondStatePVC("vm"), layout.StatePVC("vm"))
	w.follows(layout.SecondStatePVC("vm"), vmi, nil)
	w.run(pod)
	w.vmi(inPhase(kubevirtv1.PhaseScheduled))
	if c := wait(w, w.stateClaim(), exists); c.DeletionTimestamp != nil {
		w.Fatal("the old claim is deleted before the guest runs")
	}
	w.guestRuns(w.vmi(exists))
	w.releaseClaim(w.stateClaim())
	w.event(vm, changedblocktracking.ReasonClaimSucceeded)
	w.event(vm, changedblocktracking.ReasonClaimRetired)

	// The next start has only the new one.
	vmi, pod = w.reboot(vmi, pod)
	w.mounts(pod, layout.SecondStatePVC("vm"), "")

	// A claim of exactly this size would have to go again.
	controlplane.Update(w.T, w.kubelet, wait(w, w.secondClaim(), exists), true, func(c *corev1.PersistentVolumeClaim) {
		c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(oldSize, resource.BinarySI)}
	})
	vmi = w.next(vmi, pod)
	w.bind(wait(w, w.stateClaim(), exists))
	w.mounts(w.launcher(vmi), layout.StatePVC("vm"), layout.SecondStatePVC("vm"))
}

// grownDiskMoves: the machine is started again in the middle, and then is not tracked any more.
func grownDiskMoves(w *world) {
	vm, vmi, pod := w.tracked("fast")
	w.growDisk()
	vmi = w.next(vmi, pod)
	w.bind(wait(w, w.secondClaim(), exists))
	for range 2 { // neither start gets to a running guest
		pod = w.launcher(vmi)
		w.mounts(pod, layout.SecondStatePVC("vm"), layout.StatePVC("vm"))
		w.run(pod)
		vmi = w.vmi(inPhase(kubevirtv1.PhaseScheduled))
		vmi = w.next(vmi, pod)
	}
	w.launcher(vmi)
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) {
		vm.Labels, vm.Spec.RunStrategy = nil, ptr.To(kubevirtv1.RunStrategyHalted)
	})
	pod = w.launcher(vmi)
	controlplane.Eventually(w.T, func() error { return ends(w.vmi(exists)) })
	w.sweep(pod)
	w.releaseClaim(w.stateClaim())
	w.releaseClaim(w.secondClaim())
}

// expansionFails: the storage accepts an expansion and does nothing. The overlays move, and the machine starts.
func expansionFails(w *world) {
	_, vmi, pod := w.tracked(expandable)
	w.addDisk(expandable)
	vmi = w.next(vmi, pod)
	state := wait(w, w.stateClaim(), requested(1<<30))
	controlplane.Update(w.T, w.kubelet, state, true, func(c *corev1.PersistentVolumeClaim) {
		c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
			Type: corev1.PersistentVolumeClaimControllerResizeError, Status: corev1.ConditionTrue, Message: "the pool is full",
		}}
	})
	w.held(virtualmachineinstance.ReasonStateClaimExpanding, "the pool is full")
	w.elapses(stateclaim.StepExpand)
	w.bind(wait(w, w.secondClaim(), exists))
	w.mounts(w.launcher(vmi), layout.SecondStatePVC("vm"), layout.StatePVC("vm"))
}

// quotaRefuses: neither an expansion nor a second claim is allowed. In the end the first one makes room for its successor.
func quotaRefuses(w *world) {
	vm, vmi, pod := w.tracked(expandable)
	w.addDisk(expandable)
	quota := &corev1.ResourceQuota{ObjectMeta: w.meta("storage")}
	quota.Spec.Hard = corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("20Gi")}
	w.create(w.kubelet, quota)
	fill := func(used string) { // plays the controller of quotas
		controlplane.Update(w.T, w.kubelet, quota, true, func(q *corev1.ResourceQuota) {
			q.Status.Hard = q.Spec.Hard
			q.Status.Used = corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse(used)}
		})
	}
	fill("20Gi")
	vmi = w.next(vmi, pod)
	w.held(virtualmachineinstance.ReasonStateClaimMoving, "exceeded quota")
	w.event(vm, changedblocktracking.ReasonClaimRefused)
	if c := wait(w, w.stateClaim(), exists); c.DeletionTimestamp != nil {
		w.Fatal("the old claim is deleted at once")
	}
	w.elapses(stateclaim.StepMove)
	wait(w, w.stateClaim(), ends)
	fill("10Gi")
	w.releaseClaim(w.stateClaim())
	w.event(vm, changedblocktracking.ReasonClaimReplaced)
	w.mounts(w.launcher(vmi), layout.StatePVC("vm"), "")
	w.gone(w.secondClaim())
}

// secondNameTaken: a claim of somebody else has the name for the larger claim. It is left alone, and named.
func secondNameTaken(w *world) {
	_, vmi, pod := w.tracked("fast")
	w.claim(layout.SecondStatePVC("vm"), "1Gi", corev1.PersistentVolumeFilesystem)
	theirs := wait(w, w.secondClaim(), exists)
	w.addDisk("fast")
	vmi = w.next(vmi, pod)
	w.held(virtualmachineinstance.ReasonStateClaimMoving, layout.SecondStatePVC("vm"), "delete it")
	if c := wait(w, w.secondClaim(), exists); c.UID != theirs.UID || c.DeletionTimestamp != nil {
		w.Errorf("somebody else's claim was touched: %+v", c.ObjectMeta)
	}
	if err := w.user.Delete(w.Context(), theirs); err != nil {
		w.Fatal(err)
	}
	w.releaseClaim(w.secondClaim())
	second := wait(w, w.secondClaim(), func(c *corev1.PersistentVolumeClaim) error {
		if c.UID == theirs.UID || c.Annotations[layout.AnnotationMovesFrom] == "" {
			return fmt.Errorf("claim %+v", c.ObjectMeta)
		}
		return nil
	})
	w.bind(second)
	w.mounts(w.launcher(vmi), layout.SecondStatePVC("vm"), layout.StatePVC("vm"))
}
