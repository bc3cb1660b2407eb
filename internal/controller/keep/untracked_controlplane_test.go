//go:build controlplane

package keep

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/verdict"
)

// untracked makes a machine that runs, and whose changes nobody tracks.
func (w *world) untracked() *kubevirtv1.VirtualMachine {
	w.Helper()
	vm := w.running()
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta("web")}
	controlplane.Update(w.T, w.varve, vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.ChangedBlockTracking = nil
	})
	return vm
}

// nothingIsLeft waits until the snapshot and the export of a backup that has ended are gone.
func (w *world) nothingIsLeft(b *harvesterv1.VirtualMachineBackup) {
	w.Helper()
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
		if b.Labels[layout.LabelEnded] != "true" {
			return fmt.Errorf("not ended: %+v", b.Status)
		}
		return nil
	})
	w.gone(&vmsnapshotv1.VirtualMachineSnapshot{ObjectMeta: w.meta(b.Status.Group)})
	w.gone(&exportv1.VirtualMachineExport{ObjectMeta: w.meta(b.Status.Group + "-disks")})
}

// untrackedBackedUp: the disks of a running machine that nobody tracks are read from the export of a snapshot, when
// that is ready. Both go with the end of the backup.
func untrackedBackedUp(w *world) {
	vm := w.untracked()
	b := w.newBackup("monday", nil)
	w.create(b)
	s := w.snapshotOf(b)
	if d := s.Spec.FailureDeadline; d == nil || d.Duration != 5*time.Minute || !metav1.IsControlledBy(s, b) ||
		s.Spec.Source.Name != vm.Name {
		w.Errorf("snapshot %+v", s)
	}
	w.snapshotSays(s, func(status *vmsnapshotv1.VirtualMachineSnapshotStatus) {
		status.Phase, status.SourceUID = vmsnapshotv1.InProgress, &vm.UID
		status.Conditions = []vmsnapshotv1.Condition{{
			Type: vmsnapshotv1.ConditionProgressing, Status: corev1.ConditionTrue, Reason: "the storage takes its time",
		}}
	})
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"waits for VirtualMachineSnapshot "+s.Name+" to be ready: the storage takes its time"))
	var exports exportv1.VirtualMachineExportList
	w.must(w.admin.List(w.Context(), &exports, client.InNamespace(w.ns)))
	if len(exports.Items) > 0 {
		w.Errorf("an export of a snapshot that is not ready: %+v", exports.Items)
	}

	w.takes(b)
	uploads, export := w.uploads(b), w.exportOf(b)
	if diff := cmp.Diff(corev1.TypedLocalObjectReference{
		APIGroup: ptr.To("snapshot.kubevirt.io"), Kind: "VirtualMachineSnapshot", Name: s.Name,
	}, export.Spec.Source); diff != "" || !metav1.IsControlledBy(export, b) {
		w.Errorf("export %+v: %s", export.ObjectMeta, diff)
	}
	want := datamove.ExportDisk{Export: export.Name, Group: b.Status.Group, Definition: string(b.UID)}
	for _, name := range []string{"root", "data"} {
		disk, err := datamove.ParseExportDisk(uploads[name].Spec.DataMoverConfig)
		w.must(err)
		if diff := cmp.Diff(want, disk); diff != "" || !datamove.ReadsExport(uploads[name].Spec.DataMoverConfig) {
			w.Errorf("the disk of the DataUpload: %s", diff)
		}
	}
	wait(w, b, exists)
	wantAgent := []harvesterv1.SourceIndication{{Indication: "GuestAgent", Message: "its file systems were frozen"}}
	if diff := cmp.Diff(wantAgent, b.Status.SourceIndications); diff != "" || b.Status.Untracked.Message == "" ||
		b.Status.Untracked.SnapshotUID != s.UID {
		w.Errorf("untracked %+v, consistency: %s", b.Status.Untracked, diff)
	}
	for _, v := range b.Status.VolumeBackups {
		if v.VolumeSnapshotName != nil || ptr.Deref(v.ReadyToUse, false) || v.Progress > 99 {
			verdict.Errorf(w.T, "a disk that is not stored: %+v", v)
		}
	}
	for _, o := range []client.Object{
		&backupv1.VirtualMachineBackup{ObjectMeta: w.meta(b.Status.Group)},
		&corev1.PersistentVolumeClaim{ObjectMeta: w.meta(b.Status.Group + "-scratch")},
	} {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); err == nil {
			w.Errorf("%T is there", o)
		}
	}
	w.stored(b, uploads)
	w.nothingIsLeft(b)
}

// untrackedFails: a backup that fails says why, and which ways there are, and leaves no snapshot and no export.
func untrackedFails(w *world) {
	vm := w.untracked()
	for _, c := range []struct {
		name, words string
		fail        func(*harvesterv1.VirtualMachineBackup, *vmsnapshotv1.VirtualMachineSnapshot)
	}{
		{
			"storage", "volume data (PersistentVolumeClaim web-data) is not in VirtualMachineSnapshot",
			func(b *harvesterv1.VirtualMachineBackup, _ *vmsnapshotv1.VirtualMachineSnapshot) { w.takes(b, "data") },
		},
		{
			"ways", "virtual machine web can be backed up when its changes are tracked, or while it is stopped",
			func(_ *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot) {
				w.snapshotSays(s, func(status *vmsnapshotv1.VirtualMachineSnapshotStatus) {
					status.Phase, status.SourceUID = vmsnapshotv1.Failed, &vm.UID
				})
			},
		},
		{
			"disk", "the bucket is full",
			func(b *harvesterv1.VirtualMachineBackup, _ *vmsnapshotv1.VirtualMachineSnapshot) {
				w.takes(b)
				uploads := w.uploads(b)
				w.ends(uploads["root"], velerov2.PhaseFailed, "the bucket is full")
				w.ends(uploads["data"], velerov2.PhaseCompleted, "")
			},
		},
		{
			"deleted", "was deleted before its disks were stored: create another backup",
			func(b *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot) {
				w.takes(b)
				uploads := w.uploads(b)
				w.must(w.admin.Delete(w.Context(), s))
				wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
					if b.Status.VolumeBackups[0].Error == nil {
						return fmt.Errorf("nothing is noted: %+v", b.Status)
					}
					return nil
				})
				for _, u := range uploads {
					w.endsIfThere(u)
				}
			},
		},
	} {
		w.Run(c.name, func(*testing.T) {
			b := w.newBackup(c.name, nil)
			w.create(b)
			c.fail(b, w.snapshotOf(b))
			w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError, c.words))
			w.nothingIsLeft(b)
		})
	}
	early := w.newBackup("early", nil)
	w.create(early)
	s := w.snapshotOf(early)
	w.must(w.admin.Delete(w.Context(), early))
	w.gone(s)
	w.gone(early)
}
