//go:build controlplane

package keep

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
)

// found: another cluster has nothing but the location. A backup that names one disk there becomes ready with the whole
// machine, is restored as any other, and leaves what is stored when it is deleted.
func found(w *world) {
	made := w.ready("monday")
	disks := storedDisks(made)
	w.must(w.admin.Delete(w.Context(), made))
	for _, v := range made.Status.VolumeBackups {
		u := &velerov2.DataUpload{ObjectMeta: metav1.ObjectMeta{
			Namespace: made.Status.Location.Namespace,
			Name:      v.DataUpload,
		}}
		w.gone(u)
	}
	w.gone(made)

	b := w.newBackup("again", map[string]string{harvesterv1.AnnotationSnapshotID: disks[0].SnapshotID})
	w.create(b)
	request := w.request(b)
	w.readBack(harvesterv1.LocationReference{Namespace: controlplane.SystemNamespace, Name: shelf}, request,
		velerov2.PhaseCompleted, "", disks)
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
		if !b.IsReady() || b.Labels["varvebackup.io/ended"] == "" {
			return fmt.Errorf("labels %v, status %+v", b.Labels, b.Status)
		}
		return nil
	})
	for i, v := range b.Status.VolumeBackups {
		was := made.Status.VolumeBackups[i]
		if v.VolumeName != was.VolumeName || v.SnapshotID != was.SnapshotID || v.VolumeSize != 1<<30 ||
			v.DataUpload != "" {
			w.Errorf("disk %+v, want %+v", v, was)
		}
	}
	if len(b.Status.ExcludedVolumes) != len(made.Status.ExcludedVolumes) ||
		string(b.Status.Source.Spec.Raw) != string(made.Status.Source.Spec.Raw) {
		w.Errorf("source %s, excluded %+v", b.Status.Source.Spec.Raw, b.Status.ExcludedVolumes)
	}
	w.gone(&velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace,
		Name:      request,
	}})

	r := w.newRestore(b, halt)
	w.create(r)
	for _, d := range w.downloads(r) {
		w.downloaded(d, velerov2.PhaseCompleted, "")
	}
	w.complete(r)
	wait(w, &kubevirtv1.VirtualMachine{ObjectMeta: w.meta("web")}, exists)
	w.must(w.admin.Delete(w.Context(), b))
	w.gone(b)
}

// request returns the name of the DataDownload that reads the definition of a backup that is found.
func (w *world) request(b *harvesterv1.VirtualMachineBackup) string {
	w.Helper()
	name := ""
	controlplane.Eventually(w, func() error {
		var all velerov2.DataDownloadList
		if err := w.admin.List(w.Context(), &all); err != nil {
			return err
		}
		for _, d := range all.Items {
			if d.Labels["varvebackup.io/machine-backup-uid"] == string(b.UID) {
				name = d.Name
			}
		}
		if name == "" {
			return fmt.Errorf("nobody asks for the definition of %s", b.Name)
		}
		return nil
	})
	return name
}

func storedDisks(b *harvesterv1.VirtualMachineBackup) []datamove.StoredDisk {
	var disks []datamove.StoredDisk
	for _, v := range b.Status.VolumeBackups {
		disks = append(disks, datamove.StoredDisk{
			Claim: v.PersistentVolumeClaim.ObjectMeta.Name, SnapshotID: v.SnapshotID, Bytes: v.VolumeSize,
			Time: time.Now(),
		})
	}
	return disks
}

// notFound: what is not there, or not the machine that is asked for, is said.
func notFound(w *world) {
	made := w.ready("monday")
	disks := storedDisks(made)
	at := harvesterv1.LocationReference{Namespace: controlplane.SystemNamespace, Name: shelf}
	for name, c := range map[string]struct {
		edit    func(*harvesterv1.VirtualMachineBackup)
		phase   velerov2.Phase
		message string
		disks   []datamove.StoredDisk
		says    string
	}{
		"no-id": {
			edit: func(b *harvesterv1.VirtualMachineBackup) { b.Annotations[harvesterv1.AnnotationSnapshotID] = "monday" },
			says: `the annotation varvebackup.io/snapshot-id: snapshotID "monday" was not written by this version`,
		},
		"of-another-namespace": {
			edit: func(b *harvesterv1.VirtualMachineBackup) {
				id := b.Annotations[harvesterv1.AnnotationSnapshotID]
				b.Annotations[harvesterv1.AnnotationSnapshotID] = id[:strings.LastIndex(id, ".")] + ".bank"
			},
			says: "names a disk of namespace bank: create the backup there",
		},
		"damaged": {
			phase: velerov2.PhaseFailed, message: "the repository is damaged",
			says: "cannot be read: DataDownload",
		},
		"another-machine": {
			edit:  func(b *harvesterv1.VirtualMachineBackup) { b.Spec.Source.Name = "db" },
			phase: velerov2.PhaseCompleted, disks: disks,
			says: "names a disk of virtual machine web: name that one in spec.source.name",
		},
		"half": {
			phase: velerov2.PhaseCompleted, disks: disks[:1],
			says: "does not have all disks of virtual machine web as they were stored: data (claim web-data) is missing",
		},
	} {
		b := w.newBackup(name, map[string]string{harvesterv1.AnnotationSnapshotID: disks[0].SnapshotID})
		if c.edit != nil {
			c.edit(b)
		}
		w.create(b)
		if c.phase != "" {
			w.readBack(at, w.request(b), c.phase, c.message, c.disks)
		}
		w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError, c.says))
		w.must(w.admin.Delete(w.Context(), b))
		w.gone(b)
	}
}
