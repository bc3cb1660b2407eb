//go:build controlplane

package controller

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/controlplane"
)

// restrictedNamespace runs a machine where only pods are admitted that are as restricted as Kubernetes knows.
func restrictedNamespace(w *world) {
	controlplane.Update(w.T, w.kubelet, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}, false, func(ns *corev1.Namespace) {
		ns.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	})
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	pod := w.launcher(w.vmi(exists))

	// Why launcher pods have no user namespace. When this changes, they can have one.
	mapped := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "mapped"}, Spec: *pod.Spec.DeepCopy()}
	mapped.Spec.HostUsers = ptr.To(false)
	err := w.kubelet.Create(w.Context(), mapped, client.DryRunAll)
	if err == nil || !strings.Contains(err.Error(), "spec.containers[0].volumeDevices") {
		w.Errorf("a pod with a block volume and a user namespace: %v", err)
	}
}
