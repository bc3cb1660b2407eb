//go:build controlplane

package controller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

// strip plays somebody who removes the finalizer of an instance while its guest runs, and the garbage collector,
// which then deletes its pod.
func (w *world) strip(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod) {
	w.Helper()
	if err := w.user.Delete(w.Context(), vmi); err != nil {
		w.Fatal(err)
	}
	controlplane.Update(w.T, w.kubelet, vmi, false, func(i *kubevirtv1.VirtualMachineInstance) { i.Finalizers = nil })
	if err := w.kubelet.Delete(w.Context(), pod); err != nil {
		w.Fatal(err)
	}
}

// keepsItsPod checks that a pod without its instance keeps its finalizer.
func (w *world) keepsItsPod(pod *corev1.Pod) {
	w.Helper()
	controlplane.Consistently(w.T, 300*time.Millisecond, func() error {
		if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if len(pod.Finalizers) == 0 {
			return fmt.Errorf("a pod whose guest may run was let go")
		}
		return nil
	})
}

// orphanedPod: a launcher pod whose instance went before it saw the pod's end stays until the pod has ended, and no
// longer.
func orphanedPod(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyManual, nil)
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	vmi, pod := w.boot()
	w.strip(vmi, pod)
	w.gone(vmi)
	w.keepsItsPod(pod)
	w.end(pod, corev1.PodSucceeded, `{"end":"REQUESTED_SHUTDOWN","message":"stopped"}`)
	w.gone(pod)
}

// orphanedPodOfAPredecessor: the same, but by then there is an instance of the same name, which waits for the
// claim, and the controllers were restarted.
func orphanedPodOfAPredecessor(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, pod := w.boot()
	w.strip(vmi, pod)
	next := w.vmi(other(vmi.UID))
	w.keepsItsPod(pod)
	w.nothingStarts(next)
	w.stop()
	w.end(pod, corev1.PodFailed, `{"end":"CRASHED","message":"QEMU died"}`)
	w.start()
	w.gone(pod)
	w.launcher(next)
	if pod.Name == layout.LauncherPod(next.Name, next.UID) {
		w.Error("two instances have one pod")
	}
}

// orphan plays the garbage collector for an instance that is deleted with --cascade=orphan: its pod loses its owner.
func (w *world) orphan(pod *corev1.Pod) {
	w.Helper()
	controlplane.Update(w.T, w.kubelet, pod, false, func(p *corev1.Pod) { p.OwnerReferences = nil })
}

// orphaningDeletion: an instance that is deleted with --cascade=orphan ends like any other. That its pod has lost
// its owner does not end it.
func orphaningDeletion(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyManual, nil)
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	vmi, pod := w.boot()
	if err := w.user.Delete(w.Context(), vmi, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		w.Fatal(err)
	}
	w.orphan(pod)
	w.releaseOrphaning(vmi)
	w.restart()
	w.keepsItsPod(pod)
	if got := w.vmi(exists); got.Status.Phase != kubevirtv1.PhaseRunning {
		w.Errorf("the guest runs and the instance is %s: %s", got.Status.Phase, got.Status.Reason)
	}
	w.halt(vmi, pod)
	w.gone(pod)
	w.gone(vmi)
}

// releaseOrphaning plays the garbage collector's last step: the dependents are orphaned.
func (w *world) releaseOrphaning(vmi *kubevirtv1.VirtualMachineInstance) {
	w.Helper()
	controlplane.Update(w.T, w.kubelet, vmi, false, func(i *kubevirtv1.VirtualMachineInstance) {
		controllerutil.RemoveFinalizer(i, metav1.FinalizerOrphanDependents)
	})
}

// orphanedPodWithoutInstance: a pod that has lost its owner, and whose instance is gone, goes once somebody has
// deleted it and it has ended, even if the controllers were restarted.
func orphanedPodWithoutInstance(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyManual, nil)
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	vmi, pod := w.boot()
	w.stop()
	w.orphan(pod)
	w.strip(vmi, pod)
	w.gone(vmi)
	w.start()
	w.keepsItsPod(pod)
	w.end(pod, corev1.PodSucceeded, `{"end":"REQUESTED_SHUTDOWN","message":"stopped"}`)
	w.gone(pod)
}
