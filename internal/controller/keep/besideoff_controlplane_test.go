//go:build controlplane

package keep

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/controlplane"
)

// notReadySince plays KubeVirt, which notes on a machine since when no instance of it is there.
func (w *world) notReadySince(vm *kubevirtv1.VirtualMachine, since time.Time) {
	w.Helper()
	controlplane.Update(w.T, w.varve, vm, true, func(vm *kubevirtv1.VirtualMachine) {
		vm.Status.Conditions = []kubevirtv1.Condition{{
			Type: "Ready", Status: corev1.ConditionFalse, Reason: "VMINotExists", LastTransitionTime: metav1.NewTime(since),
		}}
	})
}

// exportedBeside: KubeVirt's export pods mount the claims, and their volumes do not say that it is read-only. They are
// no writers, whether they are there before the backup or come with it; other pods are.
func exportedBeside(w *world) {
	w.stopped()
	mounts := func(name string, owner *metav1.OwnerReference) {
		p := &corev1.Pod{
			ObjectMeta: w.meta(name),
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "i"}},
				Volumes: []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "web-root"},
				}}},
			},
		}
		if owner != nil {
			p.OwnerReferences = []metav1.OwnerReference{*owner}
		}
		w.create(p)
	}
	exporter := metav1.NewControllerRef(&exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Name: "e", UID: "e"}},
		exportv1.GroupVersion.WithKind("VirtualMachineExport"))
	mounts("virt-export-of-a-user", exporter)
	b := w.newBackup("monday", nil)
	w.create(b)
	uploads := w.uploads(b)
	mounts("virt-export-of-the-backup", exporter)
	w.stored(b, uploads)
	second := w.newBackup("tuesday", nil)
	w.create(second)
	uploads = w.uploads(second)
	mounts("writer", nil)
	for _, u := range uploads {
		w.endsIfThere(u)
	}
	w.failsWithNothingLeft(second, uploads, "pod writer could write to PersistentVolumeClaim web-root")
}

// createdBeside: a machine that was created a moment ago waits for KubeVirt's first status, which is no run.
func createdBeside(w *world) {
	vm := w.stopped()
	controlplane.Update(w.T, w.varve, vm, true, func(vm *kubevirtv1.VirtualMachine) { vm.Status.Conditions = nil })
	b := w.newBackup("monday", nil)
	w.create(b)
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"waits for KubeVirt to note that virtual machine "+w.ns+"/web does not run, until "))
	w.notReadySince(vm, time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC))
	for _, u := range w.uploads(b) {
		w.ends(u, velerov2.PhaseCompleted, "")
	}
	wait(w, b, isReady)
}

// startedBeside: a machine that has run, and has been stopped again before anybody looked, is told by its condition.
func startedBeside(w *world) {
	vm := w.stopped()
	w.notReadySince(vm, time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC))
	b := w.newBackup("monday", nil)
	w.create(b)
	uploads := w.uploads(b)
	w.notReadySince(vm, time.Date(2026, 11, 30, 8, 5, 0, 0, time.UTC))
	for _, u := range uploads {
		w.endsIfThere(u)
	}
	w.failsWithNothingLeft(b, uploads, "virtual machine web was started while its disks were read")
}

// snapshotBeside: KubeVirt's snapshot is made with a deadline for the time that it may freeze the guest, may have the
// claim with the machine's state beside the disks, and is deleted with the backup.
func snapshotBeside(w *world) {
	w.running()
	b := w.newSnapshot("monday", nil)
	w.create(b)
	s := w.snapshotOf(b)
	if d := s.Spec.FailureDeadline; d == nil || d.Duration != 5*time.Minute || len(s.Annotations) != 0 {
		w.Errorf("spec %+v, annotations %v", s.Spec, s.Annotations)
	}
	w.takes(b)
	wait(w, b, isReady)
	w.must(w.admin.Delete(w.Context(), b))
	w.gone(s)
	w.gone(b)
}

// snapshotFailsBeside: what KubeVirt does not do is refused, and why it has failed is told.
func snapshotFailsBeside(w *world) {
	w.running()
	failed := func(b *harvesterv1.VirtualMachineBackup, words string) {
		w.Helper()
		w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError, words))
	}
	cold := w.newSnapshot("cold", map[string]string{harvesterv1.AnnotationFreeze: "false"})
	w.create(cold)
	failed(cold, "KubeVirt freezes the guest of each snapshot if its agent answers")

	late := w.newSnapshot("late", nil)
	w.create(late)
	w.snapshotSays(w.snapshotOf(late), func(status *vmsnapshotv1.VirtualMachineSnapshotStatus) {
		status.Phase = vmsnapshotv1.Failed
		status.Conditions = []vmsnapshotv1.Condition{{
			Type: vmsnapshotv1.ConditionFailure, Status: corev1.ConditionTrue, Reason: "snapshot deadline exceeded",
		}}
	})
	failed(late, "failed: snapshot deadline exceeded")
}
