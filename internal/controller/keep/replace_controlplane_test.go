//go:build controlplane

package keep

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/verdict"
)

// replacing makes a restore that replaces a machine.
func (w *world) replacing(name, target string, b *harvesterv1.VirtualMachineBackup, policy harvesterv1.DeletionPolicy, annotations ...string) *harvesterv1.VirtualMachineRestore {
	r := w.newRestore(b, func(s *harvesterv1.VirtualMachineRestoreSpec) {
		s.NewVM, s.KeepMacAddress, s.DeletionPolicy, s.Target.Name = false, false, policy, target
	})
	r.Name, r.Annotations = name, map[string]string{}
	for i := 0; i < len(annotations); i += 2 {
		r.Annotations[annotations[i]] = annotations[i+1]
	}
	return r
}

// stop plays the controller of machines: the instance is gone, and it has seen that the machine is halted.
func (w *world) stop(name string) *kubevirtv1.VirtualMachine {
	w.Helper()
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta(name)}
	w.must(w.varve.Delete(w.Context(), vmi))
	w.gone(vmi)
	vm := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta(name)}, exists)
	controlplane.Update(w.T, w.varve, vm, false,
		func(vm *kubevirtv1.VirtualMachine) { vm.Spec.SetStrategy(kubevirtv1.RunStrategyHalted) })
	controlplane.Update(w.T, w.varve, vm, true, func(vm *kubevirtv1.VirtualMachine) {
		vm.Status.Ready, vm.Status.RunStrategy = false, kubevirtv1.RunStrategyHalted
	})
	return vm
}

func (w *world) allDownloaded(r *harvesterv1.VirtualMachineRestore) {
	w.Helper()
	for _, d := range w.downloads(r) {
		w.downloaded(d, velerov2.PhaseCompleted, "")
	}
}

// onRestoredClaims waits until the machine has the restored disks.
func (w *world) onRestoredClaims(vm *kubevirtv1.VirtualMachine, r *harvesterv1.VirtualMachineRestore) *kubevirtv1.VirtualMachine {
	w.Helper()
	return wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta(vm.Name)},
		func(have *kubevirtv1.VirtualMachine) error {
			volumes := volumesOf(have)
			if have.UID != vm.UID || volumes["root"] != "restore-monday-"+string(r.UID)+"-root" {
				return fmt.Errorf("UID %s, volumes %v", have.UID, volumes)
			}
			return nil
		})
}

func volumesOf(vm *kubevirtv1.VirtualMachine) map[string]string {
	volumes := map[string]string{}
	for _, v := range vm.Spec.Template.Spec.Volumes {
		volumes[v.Name] = v.PersistentVolumeClaim.ClaimName
	}
	return volumes
}

func (w *world) setReady(vm *kubevirtv1.VirtualMachine) {
	w.Helper()
	controlplane.Update(w.T, w.varve, vm, true, func(vm *kubevirtv1.VirtualMachine) { vm.Status.Ready = true })
}

func (w *world) kept(names ...string) {
	w.Helper()
	for _, name := range names {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(name)}
		if wait(w, claim, exists); claim.DeletionTimestamp != nil {
			verdict.Errorf(w.T, "claim %s is deleted", name)
		}
	}
}

func (w *world) refuses(r *harvesterv1.VirtualMachineRestore, words string) {
	w.Helper()
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError, words))
}

// replaced: the machine gets its spec, labels, annotations and addresses back and keeps its UID; its old claims stay. A
// controller that is killed right after the replacement goes on, and does not replace again.
func replaced(w *world) {
	b, _ := w.readyOfMachine("monday")
	vm := w.stop("web")
	controlplane.Update(w.T, w.admin, vm, false, func(vm *kubevirtv1.VirtualMachine) {
		vm.Labels = map[string]string{"tier": "back", "since": "tuesday"}
		vm.Annotations = map[string]string{"note": "mine"}
		vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress = "02:00:00:00:00:09"
		gen.Disk("new", "web-new")(&vm.Spec.Template.Spec)
	})
	r := w.replacing("back", "web", b, "")
	w.create(r)
	w.allDownloaded(r)
	have := w.onRestoredClaims(vm, r)
	if diff := cmp.Diff(map[string]string{"tier": "front", "since": "tuesday"}, have.Labels); diff != "" ||
		have.Annotations["note"] != "mine" || have.Annotations[harvesterv1.AnnotationRestoredFrom] != string(vm.UID) {
		w.Errorf("labels %s, annotations %v", diff, have.Annotations)
	}
	if mac := have.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress; mac != "02:00:00:00:00:07" ||
		volumesOf(have)["new"] != "" || volumesOf(have)["shared"] != "web-shared" {
		w.Errorf("address %q, volumes %v", mac, volumesOf(have))
	}
	wait(w, r, func(r *harvesterv1.VirtualMachineRestore) error {
		if r.Status.TargetUID == nil || r.Status.Replaced.ReplacedTime == nil {
			return fmt.Errorf("%+v", r.Status)
		}
		return nil
	})
	started := wait(w, have, func(vm *kubevirtv1.VirtualMachine) error {
		if vm.Spec.Strategy() != kubevirtv1.RunStrategyAlways {
			return fmt.Errorf("strategy %s", vm.Spec.Strategy())
		}
		return nil
	}).Generation
	// What the API server has if the controller is killed between both writes.
	controlplane.Update(w.T, w.varve, r, true, func(r *harvesterv1.VirtualMachineRestore) {
		r.Status.TargetUID, r.Status.Replaced.ReplacedTime = nil, nil
	})
	wait(w, r, func(r *harvesterv1.VirtualMachineRestore) error {
		if r.Status.TargetUID == nil {
			return fmt.Errorf("%+v", r.Status)
		}
		return nil
	})
	w.setReady(have)
	w.complete(r)
	if have = wait(w, have, exists); have.Generation != started || *r.Status.TargetUID != vm.UID ||
		r.Status.DeletedVolumes != nil {
		w.Errorf("generation %d after %d, status %+v", have.Generation, started, r.Status)
	}
	w.kept("web-root", "web-data", "web-shared")
	// Without the restore, the machine keeps its disks.
	w.must(w.admin.Delete(w.Context(), r))
	w.gone(r)
	w.kept(volumesOf(have)["root"], volumesOf(have)["data"])
}

// replacedClaims: those of the replaced machine are deleted, and not those of the machine that was backed up, nor those
// that anybody has.
func replacedClaims(w *world) {
	b, _ := w.readyOfMachine("monday")
	names := []string{"other-root", "other-pod", "other-shared", "other-late"}
	var disks []func(*kubevirtv1.VirtualMachineInstanceSpec)
	for i, name := range names {
		if name != "other-late" {
			w.create(gen.Claim(w.meta(name)))
		}
		disks = append(disks, gen.Disk([]string{"root", "data", "shared", "late"}[i], name))
	}
	// Nothing is restored in the place of this one: it is in no backup.
	w.create(gen.Claim(w.meta("other-alone")))
	disks = append(disks, gen.Disk("alone", "other-alone"))
	other := gen.VirtualMachine(w.meta("other"), gen.Guest(disks...), gen.SetRunStrategy(kubevirtv1.RunStrategyHalted))
	w.create(other)
	w.create(gen.VirtualMachine(w.meta("third"), gen.Guest(gen.Disk("shared", "other-shared"))))
	w.create(gen.Pod(w.meta("reader"), func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "other-pod"},
		}}}
	}))

	unconfirmed := w.replacing("unconfirmed", "other", b, harvesterv1.DeletionPolicyDelete)
	w.create(unconfirmed)
	w.refuses(unconfirmed, fmt.Sprintf("VM %s/other (UID %s) is not the machine that was backed up", w.ns, other.UID))
	w.refuses(unconfirmed, harvesterv1.AnnotationReplaceUID+": "+string(other.UID))
	wrong := w.replacing("wrong", "other", b, "", harvesterv1.AnnotationReplaceUID, "another")
	w.create(wrong)
	w.refuses(wrong, `names "another": it is left as it is`)
	if have := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("other")},
		exists); have.Generation != other.Generation {
		verdict.Errorf(w.T, "the machine was changed: %+v", have.Spec)
	}

	r := w.replacing("back", "other", b, harvesterv1.DeletionPolicyDelete, harvesterv1.AnnotationReplaceUID,
		string(other.UID))
	w.create(r)
	w.downloads(r)
	second := w.replacing("second", "other", b, "", harvesterv1.AnnotationReplaceUID, string(other.UID))
	w.create(second)
	w.refuses(second, fmt.Sprintf("Please wait for the previous VM restore on the %s/other to be complete first", w.ns))
	w.create(gen.Claim(w.meta("other-late")))
	w.allDownloaded(r)
	have := w.onRestoredClaims(other, r)
	w.kept("other-root")
	w.setReady(have)
	w.complete(r)
	w.deleted("other-root")
	w.kept("other-pod", "other-shared", "other-late", "other-alone", "web-root", "web-data", "web-shared")
	w.kept(volumesOf(have)["root"], volumesOf(have)["data"])
	if diff := cmp.Diff([]string{"other-root"}, r.Status.DeletedVolumes); diff != "" {
		w.Errorf("status.deletedVolumes: %s", diff)
	}
	// The machine comes from the backup now, and needs no confirmation.
	controlplane.Update(w.T, w.admin, have, false,
		func(vm *kubevirtv1.VirtualMachine) { vm.Spec.SetStrategy(kubevirtv1.RunStrategyHalted) })
	controlplane.Update(w.T, w.varve, have, true, func(vm *kubevirtv1.VirtualMachine) { vm.Status.Ready = false })
	again := w.replacing("again", "other", b, harvesterv1.DeletionPolicyDelete)
	again.Spec.HaltAfterRestore = true
	w.create(again)
	w.downloads(again)
	// A disk that is taken out of the machine while the others are restored is not the machine's old one any more.
	saved := volumesOf(have)["data"]
	controlplane.Update(w.T, w.admin, have, false, func(vm *kubevirtv1.VirtualMachine) {
		spec := &vm.Spec.Template.Spec
		spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v kubevirtv1.Volume) bool { return v.Name == "data" })
		spec.Domain.Devices.Disks = slices.DeleteFunc(spec.Domain.Devices.Disks,
			func(d kubevirtv1.Disk) bool { return d.Name == "data" })
	})
	root := volumesOf(have)["root"]
	w.allDownloaded(again)
	w.complete(again)
	w.deleted(root)
	w.kept(saved)

	// A machine without disks, whose backup's machine is gone.
	w.must(w.admin.Delete(w.Context(), &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")}))
	empty := gen.VirtualMachine(w.meta("empty"), gen.Guest(), gen.SetRunStrategy(kubevirtv1.RunStrategyHalted))
	w.create(empty)
	bare := w.replacing("bare", "empty", b, harvesterv1.DeletionPolicyDelete, harvesterv1.AnnotationReplaceUID,
		string(empty.UID))
	bare.Spec.HaltAfterRestore = true
	w.create(bare)
	w.allDownloaded(bare)
	w.complete(bare)
	w.kept("web-root", "web-data")
}

// replacedOtherwise: a disk that is left out is not in the machine, and its claim is not deleted; another one has another
// class, and is larger.
func replacedOtherwise(w *world) {
	b, _ := w.readyOfMachine("monday")
	vm := w.stop("web")
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class-" + w.ns}, Provisioner: "example.org/p"}
	w.create(class)
	r := w.replacing("back", "web", b, harvesterv1.DeletionPolicyDelete, harvesterv1.AnnotationExcludeVolumes, "data",
		harvesterv1.AnnotationDiskSizes, "root=2Gi", harvesterv1.AnnotationStorageClassMap, "*="+class.Name)
	w.create(r)
	w.allDownloaded(r)
	have := w.onRestoredClaims(vm, r)
	claim := wait(w, &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(volumesOf(have)["root"])}, exists)
	if *claim.Spec.StorageClassName != class.Name || claim.Spec.Resources.Requests.Storage().Value() != 2<<30 {
		w.Errorf("claim %+v", claim.Spec)
	}
	disks := have.Spec.Template.Spec.Domain.Devices.Disks
	if _, has := volumesOf(have)["data"]; has ||
		slices.ContainsFunc(disks, func(d kubevirtv1.Disk) bool { return d.Name == "data" }) {
		w.Errorf("volumes %v, disks %+v", volumesOf(have), disks)
	}
	w.setReady(have)
	w.complete(r)
	w.deleted("web-root")
	w.kept("web-data", "web-shared")
	want := []harvesterv1.ExcludedVolume{{
		Name: "data", Reason: harvesterv1.ExcludedByUser,
		Message: "the annotation varvebackup.io/exclude-volumes names it",
	}}
	if diff := cmp.Diff(want, r.Status.ExcludedVolumes); diff != "" {
		w.Error(diff)
	}
}

// replacedRunning: a machine that runs is stopped when its disks are restored, and not before.
func replacedRunning(w *world) {
	b, vm := w.readyOfMachine("monday")
	controlplane.Update(w.T, w.varve, vm, true, func(vm *kubevirtv1.VirtualMachine) {
		vm.Status.Ready, vm.Status.RunStrategy = true, kubevirtv1.RunStrategyAlways
	})
	r := w.replacing("back", "web", b, harvesterv1.DeletionPolicyDelete, harvesterv1.AnnotationStopTarget, "true")
	w.create(r)
	downloads := w.downloads(r)
	w.downloaded(downloads["root"], velerov2.PhaseCompleted, "")
	wait(w, r, func(r *harvesterv1.VirtualMachineRestore) error {
		if r.Status.Progress == 0 {
			return fmt.Errorf("progress %d", r.Status.Progress)
		}
		return nil
	})
	if have := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")},
		exists); have.Spec.Strategy() != kubevirtv1.RunStrategyAlways {
		w.Error("the machine is stopped before its disks are restored")
	}
	w.downloaded(downloads["data"], velerov2.PhaseCompleted, "")
	w.isHalted("web")
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "", `it has an instance (phase "Running")`))

	// The instance is gone, and the controller of machines has not seen why.
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta("web")}
	w.must(w.varve.Delete(w.Context(), vmi))
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"its controller has not seen yet that it is halted"))
	if have := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")},
		exists); volumesOf(have)["root"] != "web-root" {
		verdict.Errorf(w.T, "a machine that may be started is replaced: %v", volumesOf(have))
	}
	controlplane.Update(w.T, w.varve, vm, true, func(vm *kubevirtv1.VirtualMachine) {
		vm.Status.Ready, vm.Status.RunStrategy = false, kubevirtv1.RunStrategyHalted
	})
	have := w.onRestoredClaims(vm, r)
	wait(w, have, func(vm *kubevirtv1.VirtualMachine) error {
		if vm.Spec.Strategy() != kubevirtv1.RunStrategyAlways {
			return fmt.Errorf("strategy %s", vm.Spec.Strategy())
		}
		return nil
	})
	w.setReady(have)
	w.complete(r)
	w.deleted("web-root")
	w.deleted("web-data")
	w.kept("web-shared")
	slices.Sort(r.Status.DeletedVolumes)
	if diff := cmp.Diff([]string{"web-data", "web-root"}, r.Status.DeletedVolumes); diff != "" {
		w.Errorf("status.deletedVolumes: %s", diff)
	}
	for key := range wait(w, have, exists).Annotations {
		if key == layout.Prefix+"halted-for-restore" || key == layout.Prefix+"restored-run-strategy" {
			w.Errorf("annotation %s is left", key)
		}
	}
}

func (w *world) isHalted(name string) {
	w.Helper()
	wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta(name)}, func(vm *kubevirtv1.VirtualMachine) error {
		if vm.Spec.Strategy() != kubevirtv1.RunStrategyHalted {
			return fmt.Errorf("strategy %s", vm.Spec.Strategy())
		}
		return nil
	})
}

// notReplaced: a machine that is not there, or not stopped.
func notReplaced(w *world) {
	b, vm := w.readyOfMachine("monday")
	missing := w.replacing("missing", "nobody", b, "")
	w.create(missing)
	w.refuses(missing, "can't replace nonexistent vm nobody")
	running := w.replacing("running", "web", b, "")
	w.create(running)
	w.refuses(running, `Please stop the VM "web" before doing a restore: it has an instance (phase "Running")`)
	w.refuses(running, harvesterv1.AnnotationStopTarget)

	vmi := wait(w, &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta("web")}, exists)
	for name, edit := range map[string]func(*kubevirtv1.VirtualMachineInstance){
		"starting": func(i *kubevirtv1.VirtualMachineInstance) { i.Status.Phase = kubevirtv1.PhaseScheduling },
		"paused": func(i *kubevirtv1.VirtualMachineInstance) {
			i.Status.Phase = kubevirtv1.PhaseRunning
			i.Status.Conditions = []kubevirtv1.Condition{{Type: "Paused", Status: corev1.ConditionTrue}}
		},
	} {
		controlplane.Update(w.T, w.varve, vmi, true, edit)
		r := w.replacing(name, "web", b, "")
		w.create(r)
		w.refuses(r, `Please stop the VM "web" before doing a restore: it has an instance`)
	}
	w.must(w.varve.Delete(w.Context(), vmi))
	w.gone(vmi)
	r := w.replacing("about-to-start", "web", b, "")
	w.create(r)
	w.refuses(r, `Please stop the VM "web" before doing a restore: its run strategy is Always`)
	have := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")}, exists)
	if have.Generation != vm.Generation {
		verdict.Errorf(w.T, "the machine was changed: %+v", have.Spec)
	}
}

// startedMeanwhile: a machine that is started while the disks are restored is not touched. The restore waits for it,
// gives up, and gives back what it changed. A machine that was made again is not touched either.
func startedMeanwhile(w *world) {
	b, _ := w.readyOfMachine("monday")
	vm := w.stop("web")
	r := w.replacing("back", "web", b, harvesterv1.DeletionPolicyDelete)
	w.create(r)
	w.downloads(r)
	start := func() {
		w.Helper()
		controlplane.Update(w.T, w.admin, vm, false,
			func(vm *kubevirtv1.VirtualMachine) { vm.Spec.SetStrategy(kubevirtv1.RunStrategyAlways) })
		w.must(w.varve.Create(w.Context(), gen.VirtualMachineInstance(w.meta("web"),
			gen.Guest(gen.Disk("root", "web-root")))))
	}
	start()
	w.allDownloaded(r)
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		`virtual machine web to be stopped, until `))
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		`stop it, or give the restore the annotation `+harvesterv1.AnnotationStopTarget))

	// Its user lets the restore stop it, and starts it again.
	controlplane.Update(w.T, w.admin, r, false, func(r *harvesterv1.VirtualMachineRestore) {
		r.Annotations = map[string]string{harvesterv1.AnnotationStopTarget: "true"}
	})
	w.isHalted("web")
	controlplane.Update(w.T, w.admin, vm, false,
		func(vm *kubevirtv1.VirtualMachine) { vm.Spec.SetStrategy(kubevirtv1.RunStrategyAlways) })
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"somebody started it again: stop it"))
	late := func(r *harvesterv1.VirtualMachineRestore) {
		r.Status.Replaced.WaitingSince = ptr.To(metav1.NewTime(time.Now().Add(-2 * time.Hour)))
	}
	controlplane.Update(w.T, w.varve, r, true, late)
	w.refuses(r, "virtual machine web was not stopped within 1h0m0s")
	have := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")}, exists)
	if volumesOf(have)["root"] != "web-root" || have.Spec.Strategy() != kubevirtv1.RunStrategyAlways ||
		len(have.Annotations) != 0 {
		verdict.Errorf(w.T, "the machine is not what it was: %+v, annotations %v", have.Spec, have.Annotations)
	}
	w.must(w.admin.Delete(w.Context(), r))
	w.gone(r)
	w.deleted("restore-monday-" + string(r.UID) + "-root")
	w.kept("web-root", "web-data")

	// A restore that is deleted while it waits starts the machine again that it halted.
	deleted := w.replacing("deleted", "web", b, "", harvesterv1.AnnotationStopTarget, "true")
	w.create(deleted)
	w.allDownloaded(deleted)
	w.isHalted("web")
	w.must(w.admin.Delete(w.Context(), deleted))
	w.gone(deleted)
	have = wait(w, have, exists)
	if have.Spec.Strategy() != kubevirtv1.RunStrategyAlways || len(have.Annotations) != 0 {
		w.Errorf("strategy %s, annotations %v", have.Spec.Strategy(), have.Annotations)
	}

	w.stop("web")
	again := w.replacing("again", "web", b, harvesterv1.DeletionPolicyDelete)
	w.create(again)
	w.downloads(again)
	w.must(w.admin.Delete(w.Context(), have))
	w.gone(have)
	remade := gen.VirtualMachine(w.meta("web"), gen.Guest(gen.Disk("root", "web-root")))
	w.create(remade)
	w.allDownloaded(again)
	w.refuses(again, fmt.Sprintf("virtual machine web was made again before it was replaced (UID %s, not %s)",
		remade.UID, vm.UID))
	if have := wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")},
		exists); have.Generation != remade.Generation {
		verdict.Errorf(w.T, "the machine was changed: %+v", have.Spec)
	}
	w.kept("web-root", "web-data")
}

// changedBack: whoever manages the machine gives it its old disks again. The restore is not complete then, and the old
// claims stay.
func changedBack(w *world) {
	b, _ := w.readyOfMachine("monday")
	vm := w.stop("web")
	was := volumesOf(vm)["root"]
	r := w.replacing("back", "web", b, harvesterv1.DeletionPolicyDelete)
	w.create(r)
	w.allDownloaded(r)
	have := w.onRestoredClaims(vm, r)
	controlplane.Update(w.T, w.admin, have, false, func(vm *kubevirtv1.VirtualMachine) {
		for i := range vm.Spec.Template.Spec.Volumes {
			if v := &vm.Spec.Template.Spec.Volumes[i]; v.Name == "root" {
				v.PersistentVolumeClaim.ClaimName = was
			}
		}
	})
	w.setReady(have)
	w.restoreSays(r, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
		"virtual machine web was changed by somebody else, and does not have the restored PersistentVolumeClaim"))
	w.kept("web-root", "web-data")
}
