//go:build controlplane

package keep

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
)

// backedUp: everything is made for the disks, and removed; status has what was stored, and what was not.
func backedUp(w *world) {
	vm := w.running()
	b := w.newBackup("monday", map[string]string{harvesterv1.AnnotationFreeze: "false"})
	w.create(b)
	uploads := w.uploads(b)
	excluded := map[string]harvesterv1.ExclusionReason{}
	for _, v := range b.Status.ExcludedVolumes {
		excluded[v.Name] = v.Reason
	}
	if diff := cmp.Diff(map[string]harvesterv1.ExclusionReason{
		"shared": harvesterv1.Shareable,
		"later":  harvesterv1.NotRunningYet,
	}, excluded); diff != "" || len(uploads) != 2 {
		w.Errorf("%d uploads, left out: %s", len(uploads), diff)
	}

	disk, err := datamove.ParseMachineDisk(uploads["root"].Spec.DataMoverConfig)
	w.must(err)
	want := datamove.MachineDisk{
		Machine: "web", Volume: "root", Tracker: disk.Tracker, ScratchClaim: b.Status.Group + "-scratch",
		SkipQuiesce: true, Group: b.Status.Group, Disks: 2, Definition: string(b.UID),
	}
	if diff := cmp.Diff(want, disk); diff != "" {
		w.Errorf("the disk of the DataUpload: %s", diff)
	}
	tracker := wait(w, &backupv1.VirtualMachineBackupTracker{ObjectMeta: w.meta(disk.Tracker)}, exists)
	if len(tracker.OwnerReferences) != 1 || tracker.OwnerReferences[0].UID != vm.UID ||
		tracker.Spec.Source.Name != "web" {
		w.Errorf("tracker %+v", tracker)
	}
	scratch := wait(w, &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(disk.ScratchClaim)}, exists)
	if !metav1.IsControlledBy(scratch, b) || scratch.Spec.Resources.Requests.Storage().Value() < 2<<30 {
		w.Errorf("scratch claim %+v", scratch)
	}
	secret := wait(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace,
		Name:      datamove.DefinitionSecret(string(b.UID)),
	}}, exists)
	d, err := definition.Decode(secret.Data[datamove.DefinitionKey])
	w.must(err)
	if secret.Type != datamove.DefinitionSecretType || len(d.Secrets) != 1 ||
		string(d.Secrets[0].Data["key"]) != "hidden words" || d.Machine.ObjectMeta.Labels["tier"] != "front" ||
		len(d.Claims) != 2 {
		w.Errorf("definition %+v", d)
	}

	// The next one waits for it.
	next := w.newBackup("tuesday", nil)
	w.create(next)
	w.backupSays(next, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"waits for VirtualMachineBackup monday of the machine to end, until "))

	w.ends(uploads["root"], velerov2.PhaseCompleted, "")
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "", "Operation in progress"))
	w.ends(uploads["data"], velerov2.PhaseCompleted, "")
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
		if !b.IsReady() || b.Labels[layout.LabelEnded] != "true" || b.Status.Progress != 100 ||
			b.Status.CreationTime == nil {
			return fmt.Errorf("labels %v, status %+v", b.Labels, b.Status)
		}
		return nil
	})
	for _, of := range []harvesterv1.ConditionType{harvesterv1.ConditionReady, harvesterv1.ConditionMetadataReady} {
		w.backupSays(b, says(of, corev1.ConditionTrue, "", ""))
	}
	if diff := cmp.Diff([]harvesterv1.SecretBackup{{Name: "pull"}}, b.Status.SecretBackups); diff != "" {
		w.Errorf("Secrets, of which status has the names alone: %s", diff)
	}
	if diff := cmp.Diff(&harvesterv1.BackupTarget{Endpoint: "https://s3.lan", BucketName: "b", BucketRegion: "here"},
		b.Status.BackupTarget); diff != "" {
		w.Error(diff)
	}
	for _, v := range b.Status.VolumeBackups {
		if v.SnapshotID == "" || v.ChangedBytes != 4096 || *v.Name != "monday-volume-web-"+v.VolumeName ||
			v.PersistentVolumeClaim.ObjectMeta.Name != "web-"+v.VolumeName {
			w.Errorf("volume %+v", v)
		}
	}
	w.deleted(scratch.Name)
	w.gone(secret)

	// It has the same tracker, and everything else is its own.
	again, err := datamove.ParseMachineDisk(w.uploads(next)["root"].Spec.DataMoverConfig)
	w.must(err)
	if again.Tracker != disk.Tracker || again.Group == disk.Group || again.SkipQuiesce {
		w.Errorf("the next backup's disk %+v, this one's %+v", again, disk)
	}

	w.must(w.admin.Delete(w.Context(), b))
	w.gone(b)
	for _, u := range uploads {
		w.gone(u)
	}
}

// diskFails: the other disks are canceled, and the reason is in status.
func diskFails(w *world) {
	w.running()
	b := w.newBackup("monday", nil)
	w.create(b)
	uploads := w.uploads(b)
	w.ends(uploads["root"], velerov2.PhaseFailed, "the bucket is full: make room")
	data := wait(w, uploads["data"], func(u *velerov2.DataUpload) error {
		if !u.Spec.Cancel {
			return fmt.Errorf("not canceled: %+v", u.Spec)
		}
		return nil
	})
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"the other disks to end, because of volume root: the bucket is full"))
	w.ends(data, velerov2.PhaseCanceled, "")
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
		"volume root: the bucket is full: make room"))
	if b.IsReady() || !b.HasFailed() {
		w.Errorf("status %+v", b.Status)
	}
	w.must(w.admin.Delete(w.Context(), b))
	w.gone(b)
}

func uploadDeleted(w *world) {
	w.running()
	b := w.newBackup("monday", nil)
	w.create(b)
	uploads := w.uploads(b)
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
		if len(b.Annotations) == 0 {
			return fmt.Errorf("the DataUploads are not noted: %+v", b)
		}
		return nil
	})
	w.must(w.admin.Delete(w.Context(), uploads["root"]))
	w.ends(uploads["data"], velerov2.PhaseCompleted, "")
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
		"DataUpload "+uploads["root"].Name+" was deleted by somebody else"))
}

// locationAway: a location that does not answer is waited for, and its backup can be deleted nevertheless.
func locationAway(w *world) {
	w.running()
	b := w.newBackup("monday", map[string]string{harvesterv1.AnnotationLocation: away})
	w.create(b)
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"waits for BackupStorageLocation away to be available (nobody listens there), until "))
	w.must(w.admin.Delete(w.Context(), b))
	w.gone(b)
}

func refused(w *world) {
	vm := w.running()
	check := func(name string, annotations map[string]string, words string) {
		w.Run(name, func(t *testing.T) {
			part := *w
			part.T = t
			b := part.newBackup(name, annotations)
			part.create(b)
			part.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
				words))
			if b.Status.Error == nil || b.Status.Group != "" {
				part.Errorf("status %+v", b.Status)
			}
		})
	}
	check("no-such-volume", map[string]string{harvesterv1.AnnotationExcludeVolumes: "root, datum"}, `names "datum", and virtual machine web has no such volume`)
	check("no-disk", map[string]string{harvesterv1.AnnotationExcludeVolumes: "root,data"},
		"no disk that can be stored: root (ExcludedByUser), data (ExcludedByUser), shared (Shareable), later (NotRunningYet) are left out")
	vmi := wait(w, &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta("web")}, exists)
	track := func(state kubevirtv1.ChangedBlockTrackingState) {
		controlplane.Update(w.T, w.varve, vmi, true,
			func(i *kubevirtv1.VirtualMachineInstance) { i.Status.ChangedBlockTracking.State = state })
	}
	track(kubevirtv1.ChangedBlockTrackingPendingRestart)
	check("not-tracked", nil, "are not tracked (PendingRestart): restart it")
	w.must(w.admin.Delete(w.Context(), vm))
	w.gone(vm)
	check("no-machine", nil, "virtual machine "+w.ns+"/web does not exist")
}

// deletedEarly: a backup that is deleted while its disks are stored takes everything with it.
func deletedEarly(w *world) {
	w.running()
	b := w.newBackup("monday", nil)
	w.create(b)
	uploads := w.uploads(b)
	scratch := wait(w, &corev1.PersistentVolumeClaim{ObjectMeta: w.meta(b.Status.Group + "-scratch")}, exists)
	w.must(w.admin.Delete(w.Context(), b))
	w.gone(b)
	for _, u := range uploads {
		w.gone(u)
	}
	w.deleted(scratch.Name)
	w.gone(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace,
		Name:      datamove.DefinitionSecret(string(b.UID)),
	}})
}

// namespaceDeleted: the backups of a namespace that is deleted by mistake go as objects, and what they have stored
// stays.
func namespaceDeleted(w *world) {
	b := w.ready("monday")
	uploads := w.uploads(b)
	w.must(w.admin.Delete(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}))
	w.must(w.admin.Delete(w.Context(), b)) // as the controller of namespaces does
	w.gone(b)
	for _, u := range uploads {
		if have := wait(w, u, exists); have.DeletionTimestamp != nil {
			w.Errorf("DataUpload %s is deleted, and with it what it has stored", u.Name)
		}
	}
}
