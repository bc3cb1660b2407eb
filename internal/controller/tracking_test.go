//go:build controlplane

package controller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/changedblocktracking"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/tracking"
	"github.com/varvebackup/varve/test/controlplane"
)

var selected = map[string]string{"backup": "yes"}

func showsTracking(want kubevirtv1.ChangedBlockTrackingState) func(*kubevirtv1.VirtualMachine) error {
	return func(vm *kubevirtv1.VirtualMachine) error {
		if got := vm.Status.ChangedBlockTracking; got == nil || got.State != want {
			return fmt.Errorf("tracking %+v, want %s", got, want)
		}
		return nil
	}
}

// overlaysUp plays the handler.
func (w *world) overlaysUp(vmi *kubevirtv1.VirtualMachineInstance) {
	w.Helper()
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingInitializing))
	controlplane.Update(w.T, w.node, vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.ChangedBlockTracking.State = kubevirtv1.ChangedBlockTrackingEnabled
	})
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingEnabled))
}

func (w *world) stateClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(layout.StatePVC("vm"))}
}

// releaseClaim plays the controller of the finalizer that the API server puts on claims.
func (w *world) releaseClaim(c *corev1.PersistentVolumeClaim) {
	w.Helper()
	wait(w, c, ends)
	controlplane.Update(w.T, w.kubelet, c, false, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
}

func trackingOnAndOff(w *world) {
	w.claim("root", "10Gi", corev1.PersistentVolumeFilesystem)
	vm := w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, pod := w.boot()
	if vm := w.vm(printable(kubevirtv1.VirtualMachineRunning)); vm.Status.ChangedBlockTracking != nil {
		w.Errorf("a machine that nobody selected has a state: %+v", vm.Status.ChangedBlockTracking)
	}

	// On: takes effect after a restart.
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Labels = selected })
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingPendingRestart))
	w.restart()
	if err := w.user.Delete(w.Context(), vmi); err != nil {
		w.Fatal(err)
	}
	w.halt(vmi, pod)
	vmi = w.vmi(other(vmi.UID))
	if vmi.Annotations[layout.AnnotationTracking] != "true" {
		w.Fatalf("annotations %v", vmi.Annotations)
	}
	state := wait(w, w.stateClaim(), exists)
	if got, want := state.Spec.Resources.Requests.Storage().Value(), tracking.StateClaimRequest([]int64{10 << 30}); got != want {
		w.Errorf("the state claim has %d bytes, want %d", got, want)
	}
	if *state.Spec.StorageClassName != "fast" || state.Spec.AccessModes[0] != corev1.ReadWriteOnce || !metav1.IsControlledBy(state, vm) {
		w.Errorf("state claim %+v", state)
	}
	vmi, pod = w.boot()
	if pod.Spec.Containers[0].VolumeMounts[1].MountPath != layout.StateDir {
		w.Errorf("mounts %+v", pod.Spec.Containers[0].VolumeMounts)
	}
	w.overlaysUp(vmi)

	// The feature gate is turned off and on again. The running guest keeps its state and its overlays.
	before := w.gates(nil)
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingFGDisabled))
	if got := w.vmi(exists).Status.ChangedBlockTracking.State; got != kubevirtv1.ChangedBlockTrackingEnabled {
		w.Errorf("with the gate off the instance shows %s", got)
	}
	w.gates(before)
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingEnabled))

	// The label is taken back and set again while the guest runs.
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Labels = nil })
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingPendingRestart))
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Labels = selected })
	w.overlaysUp(vmi)

	// Off: takes effect after a restart, and the claim goes.
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Labels = nil })
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingPendingRestart))
	if err := w.user.Delete(w.Context(), vmi); err != nil {
		w.Fatal(err)
	}
	w.halt(vmi, pod)
	vmi = w.vmi(other(vmi.UID))
	if _, ok := vmi.Annotations[layout.AnnotationTracking]; ok {
		w.Errorf("annotations %v", vmi.Annotations)
	}
	w.releaseClaim(w.stateClaim())
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingDisabled))
	vmi, _ = w.boot()
	wait(w, vmi, func(i *kubevirtv1.VirtualMachineInstance) error {
		if i.Status.ChangedBlockTracking == nil || i.Status.ChangedBlockTracking.State != kubevirtv1.ChangedBlockTrackingDisabled {
			return fmt.Errorf("tracking of the instance: %+v", i.Status.ChangedBlockTracking)
		}
		return nil
	})
	w.event(vm, "ChangedBlockTrackingPendingRestart")
	w.event(vm, "ChangedBlockTrackingEnabled")
	w.event(vm, "ChangedBlockTrackingDisabled")
}

// gates sets the feature gates and returns those that were on before.
func (w *world) gates(on []string) (before []string) {
	w.Helper()
	kv := &kubevirtv1.KubeVirt{ObjectMeta: w.meta(layout.Configuration)}
	controlplane.Update(w.T, w.kubelet, kv, false, func(kv *kubevirtv1.KubeVirt) {
		before, kv.Spec.Configuration.DeveloperConfiguration.FeatureGates = kv.Spec.Configuration.DeveloperConfiguration.FeatureGates, on
	})
	return before
}

func trackingByNamespace(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	w.boot()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}
	controlplane.Update(w.T, w.kubelet, ns, false, func(n *corev1.Namespace) {
		n.Labels["backup"] = "yes"
	})
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingPendingRestart))
	kv := &kubevirtv1.KubeVirt{ObjectMeta: w.meta(layout.Configuration)}
	controlplane.Update(w.T, w.kubelet, kv, false, func(kv *kubevirtv1.KubeVirt) {
		kv.Spec.Configuration.ChangedBlockTrackingLabelSelectors = nil
	})
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingDisabled))
}

func invalidSelector(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, selected)
	w.vmi(exists)
	wait(w, w.stateClaim(), exists)
	vmi, pod := w.boot()
	w.overlaysUp(vmi)

	kv := &kubevirtv1.KubeVirt{ObjectMeta: w.meta(layout.Configuration)}
	controlplane.Update(w.T, w.kubelet, kv, false, func(kv *kubevirtv1.KubeVirt) {
		kv.Spec.Configuration.ChangedBlockTrackingLabelSelectors = &kubevirtv1.ChangedBlockTrackingSelectors{
			VirtualMachineLabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}},
		}
	})
	w.event(kv, changedblocktracking.ReasonInvalidSelector)
	controlplane.Consistently(w.T, 300*time.Millisecond, func() error {
		return showsTracking(kubevirtv1.ChangedBlockTrackingEnabled)(w.vm(exists))
	})
	// A restart changes nothing either.
	if err := w.user.Delete(w.Context(), vmi); err != nil {
		w.Fatal(err)
	}
	w.halt(vmi, pod)
	if vmi = w.vmi(other(vmi.UID)); vmi.Annotations[layout.AnnotationTracking] != "true" {
		w.Errorf("annotations %v", vmi.Annotations)
	}
}

func stateClaimTooSmall(w *world) {
	w.claim("root", "10Gi", corev1.PersistentVolumeFilesystem)
	vm := w.machine(kubevirtv1.RunStrategyHalted, selected)
	small := changedblocktracking.StateClaim(vm, resource.NewQuantity(1<<20, resource.BinarySI).Value(), nil)
	w.create(w.kubelet, small)
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) {
		s := kubevirtv1.RunStrategyAlways
		vm.Spec.RunStrategy = &s
	})
	w.releaseClaim(w.stateClaim())
	w.launcher(w.vmi(exists))
	if c := wait(w, w.stateClaim(), exists); c.UID == small.UID || c.Spec.Resources.Requests.Storage().Value() < 32<<20 {
		w.Errorf("state claim %+v", c.Spec)
	}
	w.event(vm, changedblocktracking.ReasonClaimReplaced)
}

// event waits for an event about an object.
func (w *world) event(about client.Object, reason string) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		list := &eventsv1.EventList{}
		if err := w.kubelet.List(w.Context(), list, client.InNamespace(w.ns)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Regarding.Name == about.GetName() && e.Reason == reason {
				return nil
			}
			seen = append(seen, e.Regarding.Name+": "+e.Reason)
		}
		return fmt.Errorf("no event %s about %s among %v", reason, about.GetName(), seen)
	})
}
