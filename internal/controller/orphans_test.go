//go:build controlplane

package controller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

// strip plays somebody who takes the finalizer of an instance away while its guest runs, and the garbage collector, which deletes its pod then.
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

// keepsItsPod checks that a pod without its instance is not let go.
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

// orphanedPod: a launcher pod whose instance went without having seen its end stays until it has ended, and no longer.
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

// orphanedPodOfAPredecessor: the same, with an instance of the same name by then, which waits for the claim, and controllers that know nothing.
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
