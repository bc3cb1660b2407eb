//go:build controlplane

package controller

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// export waits until the export "e" is in a phase with a reason.
func (w *world) export(phase exportv1.VirtualMachineExportPhase, reason, words string) {
	w.Helper()
	wait(w, &exportv1.VirtualMachineExport{ObjectMeta: w.meta("e")}, func(e *exportv1.VirtualMachineExport) error {
		if c := e.Status.Conditions; e.Status.Phase != phase || c[0].Reason != reason || !strings.Contains(c[0].Message, words) {
			return fmt.Errorf("not %s, %s: %+v", phase, reason, e.Status)
		}
		return nil
	})
}

func (w *world) strategy(s kubevirtv1.RunStrategy) {
	w.Helper()
	controlplane.Update(w.T, w.user, w.vm(exists), false, func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(s) })
}

// exportedDisk: a disk is exported while its machine is stopped, gives way when the machine starts, and the machine's
// next backup can be incremental.
func exportedDisk(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	w.machine(kubevirtv1.RunStrategyAlways, selected)
	first, launcher := w.boot()
	w.create(w.user, gen.Export(w.meta("e"), gen.ClaimSource("root")))
	w.export(exportv1.ExportPending, exportv1.ReasonClaimInUse, "Pod "+launcher.Name+" can write")
	w.strategy(kubevirtv1.RunStrategyHalted)
	w.halt(first, launcher)

	pod := wait(w, &corev1.Pod{ObjectMeta: w.meta(podspec.Pod("e"))}, exists)
	w.run(pod)
	controlplane.Update(w.T, w.kubelet, pod, true, func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	})
	w.export(exportv1.ExportReady, exportv1.ReasonPodReady, "")

	w.strategy(kubevirtv1.RunStrategyAlways)
	second := w.vmi(other(first.UID))
	w.export(exportv1.ExportPending, exportv1.ReasonClaimInUse, layout.LauncherPod(second.Name, second.UID))
	w.sweep(pod)
	_, _ = w.boot()
	w.follows("root", second, first)
}
