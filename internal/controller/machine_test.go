//go:build controlplane

package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachine"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// machineLife restarts the controllers after each step: they need nothing that is only in their memory.
func machineLife(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi := w.vmi(exists)
	pod := w.launcher(vmi)
	w.vmi(inPhase(kubevirtv1.PhaseScheduling))
	w.vm(printable(kubevirtv1.VirtualMachineStarting))

	w.restart()
	w.run(pod)
	vmi = w.vmi(inPhase(kubevirtv1.PhaseScheduled))
	if vmi.Status.NodeName != "node-1" || vmi.Labels[layout.LabelNodeName] != "node-1" || vmi.Status.ActivePods[pod.UID] != "node-1" {
		w.Errorf("handed over without saying where: %+v", vmi)
	}

	w.restart()
	w.guestRuns(vmi)
	vm := w.vm(printable(kubevirtv1.VirtualMachineRunning))
	if !vm.Status.Created || !vm.Status.Ready || !condition.True(vm.Status.Conditions, kubevirtv1.ConditionReady) {
		w.Errorf("a running machine: %+v", vm.Status)
	}

	// The guest crashes while no controller runs. The pod object waits until a controller has seen how it ended.
	w.stop()
	w.end(pod, corev1.PodFailed, `{"end":"CRASHED","message":"QEMU died"}`)
	w.remove(pod)
	if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		w.Fatalf("the launcher pod went before its end was seen: %v", err)
	}
	w.start()
	first := vmi.UID
	second := w.vmi(other(first))
	w.gone(pod)
	w.restart()
	w.run(w.launcher(second))
	w.guestRuns(w.vmi(inPhase(kubevirtv1.PhaseScheduled)))
	if vm := w.vm(printable(kubevirtv1.VirtualMachineRunning)); vm.Status.StartFailure != nil {
		w.Errorf("a guest that ran was counted as a failed start: %+v", vm.Status.StartFailure)
	}
}

func obstacles(w *world) {
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	w.vm(printable(kubevirtv1.VirtualMachinePvcNotFound))
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	pod := w.launcher(w.vmi(exists))
	w.vm(printable(kubevirtv1.VirtualMachineStarting))

	controlplane.Update(w.T, w.kubelet, pod, true, func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available"}}
	})
	vm := w.vm(printable(kubevirtv1.VirtualMachineUnschedulable))
	if c := condition.Find(vm.Status.Conditions, kubevirtv1.ConditionPodScheduled); c == nil || c.Message != "0/1 nodes are available" {
		w.Errorf("the scheduler's words are lost: %+v", vm.Status.Conditions)
	}
	w.run(pod)
	w.vm(printable(kubevirtv1.VirtualMachineStarting))
	w.guestRuns(w.vmi(inPhase(kubevirtv1.PhaseScheduled)))
	w.vm(printable(kubevirtv1.VirtualMachineRunning))
}

func manualRequests(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyManual, nil)
	w.vm(printable(kubevirtv1.VirtualMachineStopped))
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	vmi, pod := w.boot()
	w.vm(func(vm *kubevirtv1.VirtualMachine) error {
		if len(vm.Status.StateChangeRequests) > 0 || !vm.Status.Ready {
			return fmt.Errorf("%+v", vm.Status)
		}
		return nil
	})
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StopRequest, UID: ptr.To(vmi.UID)}, kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	w.vm(printable(kubevirtv1.VirtualMachineStopping))
	w.restart()
	w.halt(vmi, pod)
	second := w.vmi(other(vmi.UID))
	vmi, pod = w.boot()
	if second.UID != vmi.UID {
		w.Errorf("restarted twice: %s, then %s", second.UID, vmi.UID)
	}
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StopRequest, UID: ptr.To(vmi.UID)})
	w.halt(vmi, pod)
	w.gone(vmi)
	w.vm(printable(kubevirtv1.VirtualMachineStopped))
	controlplane.Consistently(w.T, 300*time.Millisecond, func() error {
		if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(vmi), vmi); err == nil {
			return fmt.Errorf("a stopped manual machine has instance %s", vmi.UID)
		}
		return nil
	})
}

func crashLoop(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi := w.vmi(exists)
	pod := w.launcher(vmi)
	w.run(pod)
	w.vmi(inPhase(kubevirtv1.PhaseScheduled))
	w.end(pod, corev1.PodFailed, `{"end":"START_FAILED","message":"disk.img is a directory"}`)
	w.sweep(pod)
	vm := w.vm(printable(kubevirtv1.VirtualMachineCrashLoopBackOff))
	f := vm.Status.StartFailure
	if f == nil || f.ConsecutiveFailCount != 1 || f.LastFailedVMIUID != vmi.UID || time.Until(f.RetryAfterTimestamp.Time) > 10*time.Second {
		w.Fatalf("%+v", f)
	}
	w.restart()
	w.event(vm, "StartFailed")
	const why = "The instance failed before its guest ran: disk.img is a directory"
	next := w.vmi(other(vmi.UID))
	saysWhy := func(vm *kubevirtv1.VirtualMachine) error {
		c := condition.Find(vm.Status.Conditions, kubevirtv1.ConditionFailure)
		if c == nil || c.Status != corev1.ConditionTrue || c.Reason != "StartFailed" || c.Message != why {
			return fmt.Errorf("the machine does not say why its start failed: %+v", vm.Status.Conditions)
		}
		return nil
	}
	w.vm(saysWhy) // the instance that failed is gone
	w.boot()
	w.vm(func(vm *kubevirtv1.VirtualMachine) error {
		if c := condition.Find(vm.Status.Conditions, kubevirtv1.ConditionFailure); c != nil {
			return fmt.Errorf("a guest runs: %+v", c)
		}
		return printable(kubevirtv1.VirtualMachineRunning)(vm)
	})
	if early := f.RetryAfterTimestamp.Sub(next.CreationTimestamp.Time); early > time.Second {
		w.Errorf("the next start was %s too early", early)
	}
}

// templateChanges: what only a restart applies is shown until it is applied or taken back.
func templateChanges(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, pod := w.boot()
	restartRequired := func(want string) {
		w.Helper()
		w.vm(func(vm *kubevirtv1.VirtualMachine) error {
			c := condition.Find(vm.Status.Conditions, kubevirtv1.ConditionRestartRequired)
			if err := printable(kubevirtv1.VirtualMachineRunning)(vm); err != nil {
				return err
			}
			if want == "" && c != nil || want != "" && (c == nil || !strings.Contains(c.Message, want)) {
				return fmt.Errorf("RestartRequired: %+v, want %q", c, want)
			}
			return nil
		})
	}
	edit := func(change func(*kubevirtv1.VirtualMachineInstanceSpec)) {
		w.Helper()
		controlplane.Update(w.T, w.user, w.vm(exists), false, func(vm *kubevirtv1.VirtualMachine) { change(&vm.Spec.Template.Spec) })
	}
	restartRequired("")
	more := gen.Guest(gen.Disk("root", "root"), gen.Disk("more", "more"))
	edit(func(s *kubevirtv1.VirtualMachineInstanceSpec) { *s = more })
	restartRequired("spec.domain.devices.disks[more], spec.volumes[more]: restart")
	edit(func(s *kubevirtv1.VirtualMachineInstanceSpec) { *s = vmi.Spec })
	restartRequired("")
	w.restart()
	edit(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.TerminationGracePeriodSeconds = ptr.To(int64(7)) })
	restartRequired("spec.terminationGracePeriodSeconds: restart")
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StopRequest, UID: ptr.To(vmi.UID)}, kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	w.halt(vmi, pod)
	w.vmi(other(vmi.UID))
	w.boot()
	restartRequired("")
}

// deletedMachine: the deletion of a machine waits for the running backup, as a stop does.
func deletedMachine(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	vm := w.machine(kubevirtv1.RunStrategyAlways, selected)
	wait(w, w.stateClaim(), exists)
	vmi, pod := w.boot()
	w.overlaysUp(vmi)
	b := w.backup()
	volume := layout.BackupUtilityVolume(b.UID)
	attachment := w.attachment(vmi, volume)
	w.run(attachment)
	w.volume(volume, kubevirtv1.VolumeAttachedToNode, "")
	w.setVolume(vmi, volume, kubevirtv1.VolumeMountedToPod)
	wait(w, b, backupIn(backupv1.BackupStarting))
	w.handles(b, backupv1.BackupCopying)

	if err := w.user.Delete(w.Context(), vm); err != nil {
		w.Fatal(err)
	}
	w.vm(printable(kubevirtv1.VirtualMachineTerminating))
	w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		if i.UID != vmi.UID || i.DeletionTimestamp == nil {
			return fmt.Errorf("instance %s is not deleted", i.UID)
		}
		return nil
	})
	w.restart()
	controlplane.Consistently(w.T, 300*time.Millisecond, func() error {
		for _, p := range []*corev1.Pod{pod, attachment} {
			if wait(w, p, exists).DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is deleted", p.Name)
			}
		}
		return backupIn(backupv1.BackupCopying)(wait(w, b, exists))
	})
	w.handles(b, backupv1.BackupCopied)
	wait(w, b, backupIn(backupv1.BackupPruning))
	w.handles(b, backupv1.BackupPruned)
	w.vmi(func(i *kubevirtv1.VirtualMachineInstance) error {
		if len(i.Spec.UtilityVolumes) > 0 {
			return fmt.Errorf("utility volumes %+v", i.Spec.UtilityVolumes)
		}
		return nil
	})
	w.setVolume(vmi, volume, kubevirtv1.VolumeUnMountedFromPod)
	w.sweep(attachment)
	wait(w, b, backupIn(backupv1.BackupDone))

	w.halt(vmi, pod)
	w.gone(vmi)
	w.gone(vm)
}

// backup creates a backup of the machine to the claim "target".
func (w *world) backup() *backupv1.VirtualMachineBackup {
	w.Helper()
	b := gen.Backup(w.meta("b"), gen.SetBackupMode(backupv1.PushMode))
	w.create(w.user, b)
	return b
}

// handles plays the handler: it moves the backup to a phase.
func (w *world) handles(b *backupv1.VirtualMachineBackup, to backupv1.BackupPhase) {
	w.Helper()
	controlplane.Update(w.T, w.node, b, true, func(b *backupv1.VirtualMachineBackup) { b.Status.Phase = to })
}

func backupIn(want backupv1.BackupPhase) func(*backupv1.VirtualMachineBackup) error {
	return func(b *backupv1.VirtualMachineBackup) error {
		if b.Status.Phase != want {
			return fmt.Errorf("backup is %s %s (%s), want %s", b.Status.Phase, b.Status.Reason, b.Status.Message, want)
		}
		return nil
	}
}

func deletedEarly(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	vm := w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi := w.vmi(exists)
	pod := w.launcher(vmi)
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted) })
	w.gone(pod)
	w.gone(vmi)
	w.vm(printable(kubevirtv1.VirtualMachineStopped))
}

func foreignInstance(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	stranger := &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta("vm")}
	stranger.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("64Mi"))}
	w.create(w.user, stranger)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	w.vm(func(vm *kubevirtv1.VirtualMachine) error {
		if c := condition.Find(vm.Status.Conditions, kubevirtv1.ConditionFailure); c == nil || c.Reason != virtualmachine.ReasonInstanceExists {
			return fmt.Errorf("conditions %+v", vm.Status.Conditions)
		}
		return nil
	})
	if err := w.user.Delete(w.Context(), stranger); err != nil {
		w.Fatal(err)
	}
	if own := w.vmi(other(stranger.UID)); !metav1.IsControlledBy(own, w.vm(exists)) {
		w.Errorf("owners %+v", own.OwnerReferences)
	}
}

func podDeleted(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyRerunOnFailure, nil)
	vmi, pod := w.boot()
	// A drain: the launcher gets SIGTERM, shuts the guest down and exits with 0. The kubelet removes the pod at
	// once.
	if err := w.user.Delete(w.Context(), pod); err != nil {
		w.Fatal(err)
	}
	w.stop()
	if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		w.Fatal(err)
	}
	w.end(pod, corev1.PodSucceeded, `{"end":"REQUESTED_SHUTDOWN","message":"the pod was deleted"}`)
	w.start()
	w.gone(pod)
	w.gone(vmi)
	// It did not fail, so it is not run again.
	w.vm(printable(kubevirtv1.VirtualMachineStopped))
}
