//go:build controlplane

package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// epoch returns the claim's record of its runs.
func (w *world) epoch(claim string) runepoch.Epoch {
	w.Helper()
	c := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(claim)}
	if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(c), c); err != nil {
		w.Fatal(err)
	}
	e, err := runepoch.Of(c)
	if err != nil {
		w.Fatal(err)
	}
	return e
}

// rescue creates a machine with another name on the claim "root".
func (w *world) rescue(shareable bool, labels map[string]string) *kubevirtv1.VirtualMachine {
	w.Helper()
	disk := gen.Disk("broken", "root", func(d *kubevirtv1.Disk) { d.Shareable = &shareable })
	vm := gen.VirtualMachine(w.meta("rescue"), gen.Guest(disk))
	vm.Labels = labels
	w.create(w.user, vm)
	return vm
}

func (w *world) rescueInstance(ok func(*kubevirtv1.VirtualMachineInstance) error) *kubevirtv1.VirtualMachineInstance {
	w.Helper()
	return wait(w, &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta("rescue")}, ok)
}

// heldBy checks that an instance waits because another one may write to its claim.
func heldBy(holder string) func(*kubevirtv1.VirtualMachineInstance) error {
	return func(vmi *kubevirtv1.VirtualMachineInstance) error {
		c := condition.Find(vmi.Status.Conditions, kubevirtv1.ConditionSynchronized)
		if c == nil || c.Status != corev1.ConditionFalse || c.Reason != virtualmachineinstance.ReasonClaimInUse || !strings.Contains(c.Message, holder) {
			return fmt.Errorf("conditions %+v, want held by %s", vmi.Status.Conditions, holder)
		}
		return nil
	}
}

// edit changes the machine's template.
func (w *world) edit(change func(*kubevirtv1.VirtualMachineInstanceSpec)) {
	w.Helper()
	vm := w.vm(exists)
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { change(&vm.Spec.Template.Spec) })
}

// next ends the machine's instance and returns its successor, which has not started yet.
func (w *world) next(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod) *kubevirtv1.VirtualMachineInstance {
	w.Helper()
	if err := w.user.Delete(w.Context(), vmi); err != nil {
		w.Fatal(err)
	}
	w.halt(vmi, pod)
	return w.vmi(other(vmi.UID))
}

// reboot ends the machine's instance and boots its successor.
func (w *world) reboot(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod) (*kubevirtv1.VirtualMachineInstance, *corev1.Pod) {
	w.Helper()
	w.next(vmi, pod)
	return w.boot()
}

// afterOneRun makes a tracked machine on the claim "root". It returns the instance that has run, and its successor,
// which has not started yet.
func (w *world) afterOneRun() (first, second *kubevirtv1.VirtualMachineInstance) {
	w.Helper()
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	w.machine(kubevirtv1.RunStrategyAlways, selected)
	first, pod := w.boot()
	return first, w.next(first, pod)
}

// follows checks that the claim names now's run as its last, and before's as the run before.
func (w *world) follows(claim string, now, before *kubevirtv1.VirtualMachineInstance) {
	w.Helper()
	e := w.epoch(claim)
	want := ""
	if before != nil {
		want = string(before.UID)
	}
	if e.Run != string(now.UID) || e.Previous != want {
		w.Errorf("claim %s: run %s after %s, want %s after %q", claim, e.Run, e.Previous, now.UID, want)
	}
}

// everyRunIsOnTheClaim goes through the ways in which Varve's own machines write to a disk without its overlay. In
// each case the claim names the run, so that the next tracked instance sees that the last run was not its own.
func everyRunIsOnTheClaim(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	vm := w.machine(kubevirtv1.RunStrategyAlways, selected)
	first, pod := w.boot()
	w.follows("root", first, nil)
	w.follows(layout.StatePVC("vm"), first, nil)

	// A plain restart, with restarted controllers.
	w.restart()
	second, pod := w.reboot(first, pod)
	w.follows("root", second, first)

	// Shareable for one run: the disk is not tracked, but the run is on the claim all the same.
	w.edit(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.Disks[0].Shareable = ptr.To(true) })
	shared, pod := w.reboot(second, pod)
	w.follows("root", shared, second)
	w.edit(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.Disks[0].Shareable = nil })
	third, pod := w.reboot(shared, pod)
	w.follows("root", third, shared)

	// The volume has a different name for one run.
	rename := func(to string) {
		w.edit(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Volumes[0].Name, s.Domain.Devices.Disks[0].Name = to, to
		})
	}
	rename("disk")
	renamed, pod := w.reboot(third, pod)
	w.follows("root", renamed, third)
	rename("root")
	fourth, pod := w.reboot(renamed, pod)
	w.follows("root", fourth, renamed)

	// The label is off for one run, and on again before the controllers could see that the machine was down.
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Labels = nil })
	w.vm(showsTracking(kubevirtv1.ChangedBlockTrackingPendingRestart))
	untracked, pod := w.reboot(fourth, pod)
	w.follows("root", untracked, fourth)
	wait(w, w.stateClaim(), ends)
	w.stop()
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Labels = selected })
	w.start()
	// The deletion of the state claim was requested while the machine ran untracked, but nobody carried it out
	// until here.
	w.next(untracked, pod)
	w.releaseClaim(w.stateClaim())
	tracked, pod := w.boot()
	w.follows("root", tracked, untracked)

	// A rescue machine runs while this one is stopped.
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted) })
	w.halt(tracked, pod)
	w.gone(tracked)
	rescue := w.rescue(false, nil)
	rescuer := w.rescueInstance(exists)
	rescuerPod := w.launcher(rescuer)
	w.run(rescuerPod)
	w.rescueInstance(inPhase(kubevirtv1.PhaseScheduled))
	w.follows("root", rescuer, tracked)
	if err := w.user.Delete(w.Context(), rescue); err != nil {
		w.Fatal(err)
	}
	w.end(rescuerPod, corev1.PodSucceeded, `{"end":"REQUESTED_SHUTDOWN","message":"stopped"}`)
	w.sweep(rescuerPod)
	w.gone(rescuer)
	controlplane.Update(w.T, w.user, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyAlways) })
	last := w.vmi(other(tracked.UID))
	w.launcher(last)
	w.follows("root", last, rescuer)
}

// oneClaimOneMachine: a second machine on the claim waits, and names the first one, until the first one's pod is
// gone.
func oneClaimOneMachine(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	w.machine(kubevirtv1.RunStrategyManual, selected)
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	first, pod := w.boot()
	w.rescue(true, nil) // shareable in only one machine is not enough
	rescuer := w.rescueInstance(heldBy("vm"))
	w.restart()
	w.nothingStarts(rescuer)
	w.follows("root", first, nil)

	// The instance's end is not enough while its pod may still run.
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StopRequest, UID: ptr.To(first.UID)})
	w.vmi(ends)
	w.nothingStarts(rescuer)
	w.halt(first, pod)
	w.gone(first)
	rescuerPod := w.launcher(rescuer)
	w.follows("root", rescuer, first)
	w.run(rescuerPod)

	// And the other way round.
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	w.vmi(heldBy("rescue"))
}

func (w *world) nothingStarts(vmi *kubevirtv1.VirtualMachineInstance) {
	w.Helper()
	controlplane.Consistently(w.T, 300*time.Millisecond, func() error {
		pod := &corev1.Pod{ObjectMeta: w.meta(layout.LauncherPod(vmi.Name, vmi.UID))}
		if err := w.kubelet.Get(w.Context(), client.ObjectKeyFromObject(pod), pod); err == nil {
			return fmt.Errorf("instance %s has a launcher pod", vmi.Name)
		}
		return nil
	})
}

// shareableInBoth: machines that both mark the disk as shareable run on one claim at the same time.
func shareableInBoth(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	w.machine(kubevirtv1.RunStrategyHalted, nil)
	w.edit(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.Disks[0].Shareable = ptr.To(true) })
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	w.boot()
	w.rescue(true, nil)
	w.run(w.launcher(w.rescueInstance(exists)))
	if got := w.epoch("root").Holders; len(got) != 2 {
		w.Errorf("holders %+v", got)
	}
}

// twoMachinesAtOnce: if machines are created together on one claim, exactly one starts.
func twoMachinesAtOnce(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	w.stop()
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	w.rescue(false, nil)
	w.start()
	var started, held int
	controlplane.Eventually(w.T, func() error {
		started, held = 0, 0
		for _, name := range []string{"vm", "rescue"} {
			vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta(name)}
			if err := w.kubelet.Get(context.Background(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
				return err
			}
			pod := &corev1.Pod{ObjectMeta: w.meta(layout.LauncherPod(name, vmi.UID))}
			if err := w.kubelet.Get(context.Background(), client.ObjectKeyFromObject(pod), pod); err == nil {
				started++
			}
			if heldBy("")(vmi) == nil {
				held++
			}
		}
		if started+held != 2 {
			return fmt.Errorf("%d started, %d held", started, held)
		}
		return nil
	})
	if started != 1 || held != 1 {
		w.Errorf("%d machines have a launcher pod and %d are held, want one each", started, held)
	}
}

// copiedRecord: a claim's record of its runs is void on another claim, even if that one has the same name.
func copiedRecord(w *world) {
	w.claimWith(map[string]string{
		layout.AnnotationRunEpoch: `{"claim":"another","run":"a","previous":"b","holders":[{"instance":"c","uid":"d"}]}`,
	}, "root", "1Gi", corev1.PersistentVolumeBlock)
	w.machine(kubevirtv1.RunStrategyAlways, selected)
	vmi := w.vmi(exists)
	w.launcher(vmi)
	w.follows("root", vmi, nil)
}

// machineMadeAgain: a machine of the same name on the same claims continues their runs, whether or not the first
// one's state claim is gone.
func machineMadeAgain(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	again := func(vmi *kubevirtv1.VirtualMachineInstance, pod *corev1.Pod, meanwhile func()) (*kubevirtv1.VirtualMachineInstance, *corev1.Pod) {
		w.Helper()
		vm := w.vm(exists)
		if err := w.user.Delete(w.Context(), vm); err != nil {
			w.Fatal(err)
		}
		w.halt(vmi, pod)
		w.gone(vmi)
		w.gone(vm)
		meanwhile()
		w.machine(kubevirtv1.RunStrategyAlways, selected)
		w.vmi(other(vmi.UID))
		return w.boot()
	}
	w.machine(kubevirtv1.RunStrategyAlways, selected)
	first, pod := w.boot()
	second, pod := again(first, pod, func() {}) // the garbage collector has not removed the state claim yet
	w.follows("root", second, first)
	w.follows(layout.StatePVC("vm"), second, first)
	third, _ := again(second, pod, func() {
		state := wait(w, w.stateClaim(), exists)
		if err := w.kubelet.Delete(w.Context(), state); err != nil {
			w.Fatal(err)
		}
		w.releaseClaim(state)
		w.gone(state)
	})
	w.follows("root", third, second)
	w.follows(layout.StatePVC("vm"), third, nil)
}

// knowsItsDisks: a claim remembers that a guest has run with a disk on it, until its content counts as replaced.
func knowsItsDisks(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi := w.vmi(exists)
	pod := w.launcher(vmi)
	w.run(pod)
	vmi = w.vmi(inPhase(kubevirtv1.PhaseScheduled))
	if w.epoch("root").HadDisk {
		w.Error("a launcher pod that runs is no guest that has run")
	}
	w.guestRuns(vmi)
	w.knowsDisk("root", true)
	next, pod := w.reboot(vmi, pod)
	w.follows("root", next, vmi)
	w.knowsDisk("root", true)

	// Somebody asks for a blank disk.
	controlplane.Update(w.T, w.user, &corev1.PersistentVolumeClaim{ObjectMeta: w.meta("root")}, false, func(c *corev1.PersistentVolumeClaim) {
		c.Annotations[layout.AnnotationContentGeneration] = "2"
	})
	w.launcher(w.next(next, pod))
	w.knowsDisk("root", false)
}

func (w *world) knowsDisk(claim string, want bool) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		if e := w.epoch(claim); e.HadDisk != want {
			return fmt.Errorf("claim %s: %+v, want a disk: %t", claim, e, want)
		}
		return nil
	})
}

// attachedElsewhere: a utility volume's pod counts as a run of its claim.
func attachedElsewhere(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("target", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyAlways, nil)
	vmi, _ := w.boot()
	w.want(vmi, "target")
	wait(w, &corev1.Pod{ObjectMeta: w.meta(layout.AttachmentPod(vmi.Name, vmi.UID, "target"))}, exists)
	if e := w.epoch("target"); e.Run != runepoch.AttachmentRun(vmi.UID, "target") {
		w.Errorf("the target's runs: %+v", e)
	}
}

// outsiders: if somebody else's pod had the claim since the last run, what was recorded before is no longer
// trusted, once.
func outsiders(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	w.machine(kubevirtv1.RunStrategyAlways, selected)
	importer := w.stranger("importer", false)
	w.endStranger(importer)
	first, pod := w.boot()
	second, pod := w.reboot(first, pod)
	w.follows("root", second, first)

	restore := w.stranger("restore", false)
	third, pod := w.reboot(second, pod)
	w.follows("root", third, nil)
	w.endStranger(restore)
	fourth, pod := w.reboot(third, pod)
	w.follows("root", fourth, nil) // it may have written before it ended
	w.stranger("reader", true)
	fifth, _ := w.reboot(fourth, pod)
	w.follows("root", fifth, fourth)
}

// lateOutsiders: somebody else's pod also counts if it has the claim after the run was written on it and before the
// launcher runs. A launcher pod may wait days for a node.
func lateOutsiders(w *world) {
	first, second := w.afterOneRun()
	pod := w.launcher(second)
	w.follows("root", second, first)
	w.endStranger(w.stranger("restore", false))
	w.restart()
	_, _ = w.boot()
	w.follows("root", second, nil)
	third, _ := w.reboot(second, pod)
	w.follows("root", third, second)
}

// unstartedRuns: an instance that ends before its guest could be started has written to no disk. Its run is taken
// back, so that the next run follows the last one that ran.
func unstartedRuns(w *world) {
	// No node has room, and the user gives up.
	first, unscheduled := w.afterOneRun()
	w.launcher(unscheduled)
	w.follows("root", unscheduled, first)
	if err := w.user.Delete(w.Context(), unscheduled); err != nil {
		w.Fatal(err)
	}
	// The pod fails before the launcher runs, and while no controller runs.
	failing := w.vmi(other(unscheduled.UID))
	pod := w.launcher(failing)
	w.follows("root", failing, first)
	w.follows(layout.StatePVC("vm"), failing, first)
	w.stop()
	w.end(pod, corev1.PodFailed, "")
	w.start()
	w.sweep(pod)
	// The launcher runs, and the machine is stopped before anybody has told the launcher to start the guest.
	idle := w.vmi(other(failing.UID))
	pod = w.launcher(idle)
	w.run(pod)
	w.vmi(inPhase(kubevirtv1.PhaseScheduled))
	w.follows("root", idle, first)
	if err := w.user.Delete(w.Context(), idle); err != nil {
		w.Fatal(err)
	}
	w.end(pod, corev1.PodSucceeded, `{"end":"REQUESTED_SHUTDOWN","message":"stopped before the guest was started","neverStarted":true}`)
	w.sweep(pod)
	w.vmi(other(idle.UID))
	last, _ := w.boot()
	w.follows("root", last, first)
}

// refusedRuns: a machine whose run cannot be written on its claims says why, both before its launcher pod is made
// and before its guest starts.
func refusedRuns(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeBlock)
	mend := w.refuseClaims()
	w.machine(kubevirtv1.RunStrategyAlways, selected)
	refused := func(vmi *kubevirtv1.VirtualMachineInstance) error {
		c := condition.Find(vmi.Status.Conditions, kubevirtv1.ConditionSynchronized)
		if c == nil || c.Status != corev1.ConditionFalse || c.Reason != virtualmachineinstance.ReasonClaimRecordRefused || !strings.Contains(c.Message, "claims.example.com") {
			return fmt.Errorf("phase %s, conditions %+v", vmi.Status.Phase, vmi.Status.Conditions)
		}
		return nil
	}
	vmi := w.vmi(refused)
	w.nothingStarts(vmi)
	mend()
	pod := w.launcher(vmi)
	w.endStranger(w.stranger("restore", false))
	mend = w.refuseClaims()
	w.run(pod)
	if vmi := w.vmi(refused); vmi.Status.Phase == kubevirtv1.PhaseScheduled {
		w.Errorf("handed over although nobody knows who wrote to the claim")
	}
	mend()
	vmi = w.vmi(inPhase(kubevirtv1.PhaseScheduled))
	if c := condition.Find(vmi.Status.Conditions, kubevirtv1.ConditionSynchronized); c != nil {
		w.Errorf("still %+v", c)
	}
}

// refuseClaims installs an admission webhook for updates of claims that is down. The returned function removes it.
func (w *world) refuseClaims() (mend func()) {
	w.Helper()
	nobody := "https://127.0.0.1:1/"
	configuration := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + w.ns},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "claims.example.com", AdmissionReviewVersions: []string{"v1"},
			SideEffects: ptr.To(admissionv1.SideEffectClassNone), FailurePolicy: ptr.To(admissionv1.Fail),
			ClientConfig:      admissionv1.WebhookClientConfig{URL: &nobody},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.ns}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"persistentvolumeclaims"}},
			}},
		}},
	}
	w.create(w.kubelet, configuration)
	probe := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta("root")}
	controlplane.Eventually(w.T, func() error { // a configuration takes effect a moment later
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"probe":"yes"}}}`))
		if err := w.kubelet.Patch(w.Context(), probe, patch, client.DryRunAll); err == nil {
			return fmt.Errorf("claims can be updated")
		}
		return nil
	})
	return func() {
		w.Helper()
		if err := w.kubelet.Delete(w.Context(), configuration); err != nil {
			w.Fatal(err)
		}
	}
}

// stranger makes a pod with the claim "root". Its labels claim that it is Varve's.
func (w *world) stranger(name string, readOnly bool) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{ObjectMeta: w.meta(name)}
	pod.Labels = map[string]string{layout.LabelApp: virtualmachineinstance.AppLauncher}
	pod.Spec.Containers = []corev1.Container{{Name: "shell", Image: "shell", VolumeDevices: []corev1.VolumeDevice{{Name: "disk", DevicePath: "/dev/disk"}}}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "root", ReadOnly: readOnly},
	}}}
	w.create(w.kubelet, pod)
	return pod
}

func (w *world) endStranger(pod *corev1.Pod) {
	w.Helper()
	controlplane.Update(w.T, w.kubelet, pod, true, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
}

// attachedDisk: a machine does not start on a claim that is attached to another one as a utility volume.
func attachedDisk(w *world) {
	w.claim("root", "1Gi", corev1.PersistentVolumeFilesystem)
	w.claim("mine", "1Gi", corev1.PersistentVolumeFilesystem)
	w.machine(kubevirtv1.RunStrategyHalted, nil)
	w.edit(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.Volumes[0].Name, s.Domain.Devices.Disks[0].Name, s.Volumes[0].PersistentVolumeClaim.ClaimName = "mine", "mine", "mine"
	})
	w.ask(kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	vmi, _ := w.boot()
	w.want(vmi, "root")
	attachment := wait(w, &corev1.Pod{ObjectMeta: w.meta(layout.AttachmentPod(vmi.Name, vmi.UID, "root"))}, exists)
	w.rescue(false, nil)
	rescuer := w.rescueInstance(heldBy("VirtualMachineInstance vm"))
	w.want(vmi)
	w.remove(attachment)
	w.launcher(rescuer)
	if e := w.epoch("root"); e.Run != string(rescuer.UID) || e.Previous != runepoch.AttachmentRun(vmi.UID, "root") {
		w.Errorf("runs %+v", e)
	}
}
