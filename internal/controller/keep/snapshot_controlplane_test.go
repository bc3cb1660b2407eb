//go:build controlplane

package keep

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/verdict"
)

// newSnapshot returns a backup of type snapshot.
func (w *world) newSnapshot(name string, annotations map[string]string) *harvesterv1.VirtualMachineBackup {
	b := w.newBackup(name, annotations)
	b.Spec.Type = harvesterv1.Snapshot
	return b
}

// snapshotOf waits for the VirtualMachineSnapshot of a backup.
func (w *world) snapshotOf(b *harvesterv1.VirtualMachineBackup) *vmsnapshotv1.VirtualMachineSnapshot {
	w.Helper()
	wait(w, b, isPlanned)
	return wait(w, &vmsnapshotv1.VirtualMachineSnapshot{ObjectMeta: w.meta(b.Status.Group)}, exists)
}

// takes plays the controller of VirtualMachineSnapshots and the storage: the disks of a backup, without some, have
// VolumeSnapshots that are ready.
func (w *world) takes(b *harvesterv1.VirtualMachineBackup, without ...string) *vmsnapshotv1.VirtualMachineSnapshot {
	w.Helper()
	s := w.snapshotOf(b)
	now := metav1.Now()
	content := &vmsnapshotv1.VirtualMachineSnapshotContent{
		ObjectMeta: w.meta("vmsnapshot-content-" + string(s.UID)),
		Spec:       vmsnapshotv1.VirtualMachineSnapshotContentSpec{VirtualMachineSnapshotName: &s.Name},
	}
	var states []vmsnapshotv1.VolumeSnapshotStatus
	for _, v := range b.Status.VolumeBackups {
		if slices.Contains(without, v.VolumeName) {
			continue
		}
		claim := v.PersistentVolumeClaim.ObjectMeta.Name
		snapshot := &snapshotv1.VolumeSnapshot{
			ObjectMeta: w.meta("vmsnapshot-" + string(s.UID) + "-volume-" + v.VolumeName),
			Spec: snapshotv1.VolumeSnapshotSpec{
				Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim},
				VolumeSnapshotClassName: ptr.To("snapshots"),
			},
		}
		w.create(snapshot)
		controlplane.Update(w.T, w.admin, snapshot, true, func(s *snapshotv1.VolumeSnapshot) {
			s.Status = &snapshotv1.VolumeSnapshotStatus{
				CreationTime: &now, ReadyToUse: ptr.To(true),
				RestoreSize: resource.NewQuantity(1<<30, resource.BinarySI),
			}
		})
		content.Spec.VolumeBackups = append(content.Spec.VolumeBackups, vmsnapshotv1.VolumeBackup{
			VolumeName: v.VolumeName, VolumeSnapshotName: &snapshot.Name,
			PersistentVolumeClaim: vmsnapshotv1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim}},
		})
		states = append(states, vmsnapshotv1.VolumeSnapshotStatus{
			VolumeSnapshotName: snapshot.Name, CreationTime: &now, ReadyToUse: ptr.To(true),
		})
	}
	w.must(w.varve.Create(w.Context(), content))
	controlplane.Update(w.T, w.varve, content, true, func(c *vmsnapshotv1.VirtualMachineSnapshotContent) {
		c.Status = &vmsnapshotv1.VirtualMachineSnapshotContentStatus{
			ReadyToUse:           ptr.To(true),
			VolumeSnapshotStatus: states,
		}
	})
	w.snapshotSays(s, func(status *vmsnapshotv1.VirtualMachineSnapshotStatus) {
		status.Phase, status.ReadyToUse = vmsnapshotv1.Succeeded, ptr.To(true)
		status.SourceUID, status.VirtualMachineSnapshotContentName = b.Status.SourceUID, &content.Name
		status.SourceIndications = []vmsnapshotv1.SourceIndication{{
			Indication: vmsnapshotv1.GuestAgent, Message: "its file systems were frozen",
		}}
	})
	return s
}

// snapshotSays writes the status of a VirtualMachineSnapshot, as its controller does.
func (w *world) snapshotSays(s *vmsnapshotv1.VirtualMachineSnapshot, edit func(*vmsnapshotv1.VirtualMachineSnapshotStatus)) {
	w.Helper()
	controlplane.Update(w.T, w.varve, s, true, func(s *vmsnapshotv1.VirtualMachineSnapshot) {
		if s.Status == nil {
			s.Status = &vmsnapshotv1.VirtualMachineSnapshotStatus{}
		}
		edit(s.Status)
	})
}

// readySnapshot makes a snapshot that is ready, of a machine that is there.
func (w *world) readySnapshot(name string) *harvesterv1.VirtualMachineBackup {
	w.Helper()
	b := w.newSnapshot(name, nil)
	w.create(b)
	w.takes(b)
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
		if !b.IsReady() || b.Labels[layout.LabelEnded] != "true" {
			return fmt.Errorf("not ready: %+v", b.Status.Conditions)
		}
		return nil
	})
	return b
}

func leftOut(b *harvesterv1.VirtualMachineBackup) map[string]harvesterv1.ExclusionReason {
	all := map[string]harvesterv1.ExclusionReason{}
	for _, v := range b.Status.ExcludedVolumes {
		all[v.Name] = v.Reason
	}
	return all
}

// snapshotTaken: of a machine that runs and is not tracked. The next backup waits for it, whatever its type, and a
// controller that is killed goes on. Its deletion waits for the VirtualMachineSnapshot.
func snapshotTaken(w *world) {
	vm := w.running()
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: w.meta("web")}
	controlplane.Update(w.T, w.varve, vmi, true, func(i *kubevirtv1.VirtualMachineInstance) {
		i.Status.ChangedBlockTracking = nil
	})
	b := w.newSnapshot("monday", map[string]string{harvesterv1.AnnotationExcludeVolumes: "data"})
	b.Spec.FSFreezeDeadline = &metav1.Duration{Duration: 5 * time.Second}
	w.create(b)
	s := w.snapshotOf(b)
	if s.Spec.Source.Name != "web" || *s.Spec.DeletionPolicy != vmsnapshotv1.DeleteContent ||
		len(s.OwnerReferences) > 0 ||
		s.Annotations[vmsnapshotv1.AnnotationFreezeDeadline] != "5s" ||
		s.Annotations[vmsnapshotv1.AnnotationExcludeVolumes] != "data" {
		w.Errorf("snapshot %+v", s)
	}
	if diff := cmp.Diff(map[string]harvesterv1.ExclusionReason{
		"data": harvesterv1.ExcludedByUser, "shared": harvesterv1.Shareable, "later": harvesterv1.NotRunningYet,
	}, leftOut(b)); diff != "" || len(b.Status.VolumeBackups) != 1 {
		w.Errorf("%d volumes, left out: %s", len(b.Status.VolumeBackups), diff)
	}
	next := w.newSnapshot("tuesday", map[string]string{harvesterv1.AnnotationFreeze: "false"})
	w.create(next)
	w.backupSays(next, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"waits for VirtualMachineBackup monday of the machine to end, until "))

	w.snapshotSays(s, func(status *vmsnapshotv1.VirtualMachineSnapshotStatus) {
		status.Phase, status.SourceUID = vmsnapshotv1.InProgress, &vm.UID
		status.Conditions = []vmsnapshotv1.Condition{{
			Type: vmsnapshotv1.ConditionProgressing, Status: corev1.ConditionTrue,
			Message: "the storage takes its time",
		}}
	})
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "",
		"waits for VirtualMachineSnapshot "+s.Name+" to be ready: the storage takes its time"))
	// The controller was killed before it had noted that everything is made.
	controlplane.Update(w.T, w.admin, b, false, func(b *harvesterv1.VirtualMachineBackup) {
		delete(b.Annotations, layout.Prefix+"children-made")
	})
	uid := s.UID
	if w.takes(b); s.UID != uid {
		w.Errorf("another VirtualMachineSnapshot was made")
	}
	wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
		if !b.IsReady() || b.Labels[layout.LabelEnded] != "true" || b.Status.Progress != 100 ||
			b.Status.CreationTime == nil || b.Annotations[layout.Prefix+"children-made"] == "" {
			return fmt.Errorf("%+v, status %+v", b.ObjectMeta, b.Status)
		}
		return nil
	})
	v := b.Status.VolumeBackups[0]
	if *v.VolumeSnapshotName != "vmsnapshot-"+string(uid)+"-volume-root" || !*v.ReadyToUse || v.CreationTime == nil ||
		v.DataUpload != "" || v.SnapshotID != "" || b.Status.Location != nil {
		verdict.Errorf(w.T, "volume %+v", v)
	}
	if diff := cmp.Diff([]harvesterv1.SourceIndication{{
		Indication: "GuestAgent",
		Message:    "its file systems were frozen",
	}},
		b.Status.SourceIndications); diff != "" {
		w.Error(diff)
	}
	var trackers backupv1.VirtualMachineBackupTrackerList
	var claims corev1.PersistentVolumeClaimList
	w.must(w.admin.List(w.Context(), &trackers, client.InNamespace(w.ns)))
	w.must(w.admin.List(w.Context(), &claims, client.InNamespace(w.ns)))
	if len(trackers.Items) != 0 || len(claims.Items) != 3 {
		w.Errorf("%d trackers, %d claims", len(trackers.Items), len(claims.Items))
	}
	if other := w.snapshotOf(next); other.Annotations[vmsnapshotv1.AnnotationFreezeDeadline] != "false" {
		w.Errorf("annotations %v", other.Annotations)
	}

	controlplane.Update(w.T, w.admin, s, false, func(s *vmsnapshotv1.VirtualMachineSnapshot) {
		s.Finalizers = append(s.Finalizers, "example.com/storage")
	})
	w.must(w.admin.Delete(w.Context(), b))
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "Deleting",
		"the deletion waits for VirtualMachineSnapshot "+s.Name+" to be deleted with its VolumeSnapshots"))
	controlplane.Update(w.T, w.admin, s, false, func(s *vmsnapshotv1.VirtualMachineSnapshot) { s.Finalizers = nil })
	w.gone(s)
	w.gone(b)
}

// snapshotStopped: of a machine that does not run, until it is taken. A disk that is to be made of a snapshot holds it.
func snapshotStopped(w *world) {
	vm := w.stopped()
	b := w.readySnapshot("monday")
	if len(b.Status.VolumeBackups) != 3 || b.Status.Stopped != nil ||
		!cmp.Equal(b.Status.SecretBackups, []harvesterv1.SecretBackup{{Name: "pull"}}) {
		w.Errorf("status %+v", b.Status)
	}
	for _, v := range b.Status.VolumeBackups {
		if ptr.Deref(v.VolumeSnapshotName, "") == "" || v.VolumeSize != 1<<30 {
			verdict.Errorf(w.T, "volume %+v", v)
		}
	}

	early := w.newSnapshot("early", nil)
	w.create(early)
	w.snapshotOf(early)
	w.start(vm.Spec.Template.Spec)
	w.backupSays(early, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
		"virtual machine web was started while its disks were read"))

	claim := gen.Claim(w.meta("late"), func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{
			APIGroup: ptr.To(snapshotv1.GroupName), Kind: "VolumeSnapshot",
			Name: *b.Status.VolumeBackups[0].VolumeSnapshotName,
		}
	})
	w.create(claim)
	w.must(w.admin.Delete(w.Context(), b))
	w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionTrue, "Deleting",
		"the deletion waits for PersistentVolumeClaim late to be made from VolumeSnapshot "))
	controlplane.Update(w.T, w.admin, claim, true, func(c *corev1.PersistentVolumeClaim) {
		c.Status.Phase = corev1.ClaimBound
	})
	w.gone(b)
}

// snapshotFails: nothing of a snapshot stays that has failed.
func snapshotFails(w *world) {
	w.running()
	fails := func(name, words string, play func(*harvesterv1.VirtualMachineBackup, *vmsnapshotv1.VirtualMachineSnapshot)) {
		w.Run(name, func(t *testing.T) {
			part := *w
			part.T = t
			b := part.newSnapshot(name, nil)
			part.create(b)
			s := part.snapshotOf(b)
			play(b, s)
			part.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
				words))
			part.gone(s)
			for _, v := range b.Status.VolumeBackups {
				if ptr.Deref(v.ReadyToUse, false) || v.VolumeSnapshotName != nil {
					verdict.Errorf(part.T, "a failed snapshot has a volume: %+v", v)
				}
			}
			part.must(part.admin.Delete(part.Context(), b))
			part.gone(b)
		})
	}
	fails("storage", "failed: volume root: the storage is full",
		func(_ *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot) {
			w.snapshotSays(s, func(status *vmsnapshotv1.VirtualMachineSnapshotStatus) {
				status.Phase, status.Error = vmsnapshotv1.Failed, &vmsnapshotv1.Error{Message: ptr.To("volume root: the storage is full")}
			})
		})
	fails("missing", "volume data (PersistentVolumeClaim web-data) is not in VirtualMachineSnapshot ",
		func(b *harvesterv1.VirtualMachineBackup, _ *vmsnapshotv1.VirtualMachineSnapshot) {
			w.takes(b, "data")
		})
	fails("again", "virtual machine web was made again before its snapshot was taken",
		func(_ *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot) {
			w.snapshotSays(s, func(status *vmsnapshotv1.VirtualMachineSnapshotStatus) { status.SourceUID = ptr.To(s.UID) })
		})
	fails("deleted", "was deleted by somebody else",
		func(b *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot) {
			wait(w, b, func(b *harvesterv1.VirtualMachineBackup) error {
				if b.Annotations[layout.Prefix+"children-made"] == "" {
					return fmt.Errorf("not noted: %+v", b)
				}
				return nil
			})
			w.must(w.admin.Delete(w.Context(), s))
		})
	for _, name := range []string{harvesterv1.AnnotationLocation, harvesterv1.AnnotationScratchClass, harvesterv1.AnnotationSnapshotID} {
		b := w.newSnapshot("annotated", map[string]string{name: shelf})
		w.create(b)
		w.backupSays(b, says(harvesterv1.ConditionProgressing, corev1.ConditionFalse, harvesterv1.ReasonError,
			"the annotation "+name+" is for type backup"))
		w.must(w.admin.Delete(w.Context(), b))
		w.gone(b)
	}
	early := w.newSnapshot("early", nil)
	w.create(early)
	s := w.snapshotOf(early)
	w.must(w.admin.Delete(w.Context(), early))
	w.gone(s)
	w.gone(early)
}
