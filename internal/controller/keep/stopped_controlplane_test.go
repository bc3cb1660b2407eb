//go:build controlplane

package keep

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/verdict"
)

// stopped makes a machine that has run and does not run any more, with the disks root, data and later, and a shared disk.
func (w *world) stopped() *kubevirtv1.VirtualMachine {
	w.Helper()
	vm, _ := w.machine(kubevirtv1.RunStrategyManual)
	w.create(gen.Claim(w.meta("web-later"), gen.SetSize("1Gi"), gen.SetVolumeMode(corev1.PersistentVolumeFilesystem)))
	for _, name := range []string{"web-root", "web-data"} {
		w.ran(name, "the first")
	}
	w.notReadySince(vm, time.Date(2026, 11, 30, 7, 0, 0, 0, time.UTC))
	return vm
}

// ran notes on a claim that a run could write to it, as is done before a launcher's pod is made.
func (w *world) ran(claim, run string) {
	w.Helper()
	c := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(claim)}
	controlplane.Update(w.T, w.varve, c, false, func(c *corev1.PersistentVolumeClaim) {
		epoch, err := runepoch.Of(c)
		w.must(err)
		w.must(epoch.Begin(run).Write(c))
	})
}

// exportOf waits for the export that the disks are read from.
func (w *world) exportOf(b *harvesterv1.VirtualMachineBackup) *exportv1.VirtualMachineExport {
	w.Helper()
	return wait(w, &exportv1.VirtualMachineExport{ObjectMeta: w.meta(b.Status.Group + "-disks")}, exists)
}

// failsWithNothingLeft waits until the backup has failed with these words, and has nothing stored any more.
func (w *world) failsWithNothingLeft(b *harvesterv1.VirtualMachineBackup, uploads map[string]*velerov2.DataUpload, words string) {
	w.Helper()
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError, words))
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
		if !b.HasFailed() || b.IsReady() || b.Labels[layout.LabelEnded] != "true" {
			return fmt.Errorf("labels %v, status %+v", b.Labels, b.Status)
		}
		return nil
	})
	for _, v := range b.Status.VolumeBackups {
		if ptr.Deref(v.ReadyToUse, false) || v.SnapshotID != "" {
			verdict.Errorf(w.T, "a failed backup has a restore point: %+v", v)
		}
	}
	for _, u := range uploads {
		w.gone(u)
	}
	w.gone(&exportv1.VirtualMachineExport{ObjectMeta: w.meta(b.Status.Group + "-disks")})
	w.gone(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace, Name: datamove.DefinitionSecret(string(b.UID)),
	}})
}

// stoppedBackedUp: the disks of a machine that does not run are read from an export, and its tracker stays as it is.
func stoppedBackedUp(w *world) {
	vm := w.stopped()
	b := w.newBackup("monday", nil)
	w.create(b)
	uploads := w.uploads(b)
	export := w.exportOf(b)
	if s := export.Spec.Source; s.Kind != "VirtualMachine" || s.Name != vm.Name || !metav1.IsControlledBy(export, b) {
		w.Errorf("export %+v", export)
	}
	want := datamove.ExportDisk{Export: export.Name, Group: b.Status.Group, Definition: string(b.UID)}
	for _, name := range []string{"root", "data", "later"} {
		u := uploads[name]
		if u == nil {
			w.Fatalf("no DataUpload of volume %s", name)
		}
		disk, err := datamove.ParseExportDisk(u.Spec.DataMoverConfig)
		w.must(err)
		if diff := cmp.Diff(want, disk); diff != "" || !datamove.ReadsExport(u.Spec.DataMoverConfig) ||
			u.Spec.SourcePVC != "web-"+name {
			w.Errorf("the disk of the DataUpload: %s", diff)
		}
	}
	if len(uploads) != 3 || len(b.Status.ExcludedVolumes) != 1 ||
		b.Status.ExcludedVolumes[0].Reason != harvesterv1.Shareable {
		w.Errorf("%d uploads, left out: %+v", len(uploads), b.Status.ExcludedVolumes)
	}
	secret := wait(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace, Name: datamove.DefinitionSecret(string(b.UID)),
	}}, exists)
	d, err := definition.Decode(secret.Data[datamove.DefinitionKey])
	w.must(err)
	if len(d.Claims) != 3 || d.Machine.ObjectMeta.Labels["tier"] != "front" ||
		strings.Contains(string(d.Machine.Spec.Raw), "02:00:00:00:00:07") {
		w.Errorf("definition %+v", d)
	}
	var trackers backupv1.VirtualMachineBackupTrackerList
	w.must(w.admin.List(w.Context(), &trackers, client.InNamespace(w.ns)))
	scratch := &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(b.Status.Group + "-scratch")}
	if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(scratch), scratch); len(trackers.Items) > 0 ||
		!apierrors.IsNotFound(err) {
		w.Errorf("trackers %+v, scratch claim: %v", trackers.Items, err)
	}

	for _, u := range uploads {
		w.ends(u, velerov2.PhaseCompleted, "")
	}
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
		if !b.IsReady() || b.Labels[layout.LabelEnded] != "true" {
			return fmt.Errorf("labels %v, status %+v", b.Labels, b.Status)
		}
		return nil
	})
	w.gone(export)
	w.gone(secret)
	w.must(w.admin.Delete(w.Context(), b))
	w.gone(b)
	for _, u := range uploads {
		w.gone(u)
	}
}

// startedWhileRead: whether the guest still runs when the disks are stored, or has been stopped again, what was read may be
// of no moment, and does not stay.
func startedWhileRead(w *world) {
	vm := w.stopped()
	const words = "virtual machine web was started while its disks were read: create another backup"

	runs := w.newBackup("runs", nil)
	w.create(runs)
	uploads := w.uploads(runs)
	w.ends(uploads["root"], velerov2.PhaseCompleted, "")
	guest := vm.Spec.Template.Spec
	vmi := w.start(guest)
	w.failsWithNothingLeft(runs, uploads, words)
	w.must(w.admin.Delete(w.Context(), vmi))
	w.gone(vmi)

	// The guest has run, and has been stopped, before anybody looked.
	ran := w.newBackup("ran", nil)
	w.create(ran)
	uploads = w.uploads(ran)
	w.ran("web-data", "the second")
	for _, u := range uploads {
		w.endsIfThere(u)
	}
	w.failsWithNothingLeft(ran, uploads, words)

	// The process died when it had written that down.
	died := w.newBackup("died", nil)
	w.create(died)
	uploads = w.uploads(died)
	w.exportOf(died)
	controlplane.Update(w.T, w.varve, died, true, func(b *harvesterv1.VirtualMachineBackup) {
		b.Status.Error = &harvesterv1.Error{Message: ptr.To(words)}
		b.Status.Conditions = []harvesterv1.Condition{{
			Type: harvesterv1.ConditionProgressing, Status: corev1.ConditionFalse,
			Reason: harvesterv1.ReasonError, Message: words,
		}}
	})
	w.failsWithNothingLeft(died, uploads, words)
}

// endsIfThere is ends for a DataUpload that may be deleted meanwhile.
func (w *world) endsIfThere(u *velerov2.DataUpload) {
	w.Helper()
	base := u.DeepCopy()
	u.Status.Phase = velerov2.PhaseCompleted
	if err := w.admin.Patch(w.Context(), u, client.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
}

// writtenWhileRead: a pod of somebody else's that has come and ended meanwhile, a claim that was made again, and a machine
// that was changed.
func writtenWhileRead(w *world) {
	vm := w.stopped()
	pod := func(name, claim string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: w.meta(name),
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "i"}},
				Volumes: []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
				}}},
			},
		}
		w.create(p)
		return p
	}
	ended := func(p *corev1.Pod) {
		controlplane.Update(w.T, w.admin, p, true, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	}
	importer := pod("importer", "web-root")
	first := w.newBackup("first", nil)
	w.create(first)
	w.backupSays(first, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"waits for pod importer to end, which can write to PersistentVolumeClaim web-root, until "))
	ended(importer)
	uploads := w.uploads(first)
	ended(pod("repair", "web-root"))
	for _, u := range uploads {
		w.ends(u, velerov2.PhaseCompleted, "")
	}
	w.failsWithNothingLeft(first, uploads, "pod repair could write to PersistentVolumeClaim web-root while it was read")

	second := w.newBackup("second", nil)
	w.create(second)
	uploads = w.uploads(second)
	controlplane.Update(w.T, w.admin, vm, false, func(vm *kubevirtv1.VirtualMachine) {
		vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted)
	})
	w.failsWithNothingLeft(second, uploads,
		"virtual machine web was changed while its disks were read, and may have been started")
}

// stoppedWaits: for a machine that is to run, and for what a DataUpload waits for.
func stoppedWaits(w *world) {
	vm := w.stopped()
	strategy := func(s kubevirtv1.RunStrategy) {
		controlplane.Update(w.T, w.admin, vm, false, func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = &s })
	}
	strategy(kubevirtv1.RunStrategyAlways)
	b := w.newBackup("monday", nil)
	w.create(b)
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"waits for virtual machine "+w.ns+"/web to run: its runStrategy is Always, and it has no instance that runs, until "))
	strategy(kubevirtv1.RunStrategyHalted)
	uploads := w.uploads(b)
	const waits = "VirtualMachineExport to be Ready: pod helper can write to PersistentVolumeClaim web-shared"
	controlplane.Update(w.T, w.admin, uploads["root"], false, func(u *velerov2.DataUpload) {
		u.Status.Phase, u.Status.Message = velerov2.PhaseAccepted, waits
	})
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "", "waits for volume root: "+waits))
	w.ends(uploads["root"], velerov2.PhaseFailed, "timed out after 10m0s: "+waits)
	for _, name := range []string{"data", "later"} {
		canceled := wait(w, uploads[name], func(u *velerov2.DataUpload) error {
			if !u.Spec.Cancel {
				return fmt.Errorf("not canceled: %+v", u.Spec)
			}
			return nil
		})
		w.ends(canceled, velerov2.PhaseCanceled, "")
	}
	w.failsWithNothingLeft(b, uploads, "volume root: timed out after 10m0s: "+waits)
}

// stoppedDeleted: a backup that is deleted while its disks are read takes everything with it.
func stoppedDeleted(w *world) {
	w.stopped()
	b := w.newBackup("monday", nil)
	w.create(b)
	uploads := w.uploads(b)
	export := w.exportOf(b)
	w.must(w.admin.Delete(w.Context(), b))
	w.gone(b)
	for _, u := range uploads {
		w.gone(u)
	}
	w.gone(export)
}
