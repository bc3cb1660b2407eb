package utilityvolume

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// holdLimit is how long a backup may keep its volume attached after the instance has ended.
const holdLimit = 2 * time.Minute

// input is everything that the decision depends on.
type input struct {
	// Now is the time that holdLimit is measured against.
	Now time.Time
	// Instance is not modified.
	Instance *kubevirtv1.VirtualMachineInstance
	// Claims are the claims of the instance's utility volumes by name. A claim that does not exist is absent.
	Claims map[string]*corev1.PersistentVolumeClaim
	// Pods are the instance's attachment pods by utility volume.
	Pods map[string]*corev1.Pod
	// Backups are the backups in the instance's namespace.
	Backups []backupv1.VirtualMachineBackup
}

// decision is what to do. Status is written before pods are created and deleted.
type decision struct {
	// Status is what the instance's volumeStatus must be.
	Status []kubevirtv1.VolumeStatus
	// Create are the utility volumes that need an attachment pod.
	Create []kubevirtv1.UtilityVolume
	// Delete are the attachment pods to delete.
	Delete []*corev1.Pod
	// RequeueAfter is when the decision changes by the passage of time alone. 0: never.
	RequeueAfter time.Duration
}

// decide says what the utility volumes of an instance need now.
func decide(in input) decision {
	var d decision
	seen := map[string]bool{}
	for _, status := range in.Instance.Status.VolumeStatus {
		if status.HotplugVolume == nil {
			d.Status = append(d.Status, status)
			continue
		}
		seen[status.Name] = true
		d.advanceKnown(in, *status.DeepCopy())
	}
	if !in.Instance.Status.Phase.Final() && in.Instance.DeletionTimestamp == nil {
		for _, v := range in.Instance.Spec.UtilityVolumes {
			if !seen[v.Name] {
				seen[v.Name] = true
				d.advanceWanted(in, v, kubevirtv1.VolumeStatus{Name: v.Name, Phase: kubevirtv1.VolumePending, HotplugVolume: &kubevirtv1.HotplugVolumeStatus{}})
			}
		}
	}
	for name, pod := range in.Pods {
		if !seen[name] {
			d.deletePod(pod)
		}
	}
	slices.SortFunc(d.Delete, func(a, b *corev1.Pod) int { return compareStrings(a.Name, b.Name) })
	return d
}

// advanceKnown advances a volume that has a status.
func (d *decision) advanceKnown(in input, status kubevirtv1.VolumeStatus) {
	if in.Instance.Status.Phase.Final() {
		d.afterEnd(in, status)
		return
	}
	i := slices.IndexFunc(in.Instance.Spec.UtilityVolumes, func(v kubevirtv1.UtilityVolume) bool { return v.Name == status.Name })
	leaving := status.Phase == kubevirtv1.VolumeDetaching || status.Phase == kubevirtv1.VolumeUnMountedFromPod
	if i >= 0 && !leaving {
		d.advanceWanted(in, in.Instance.Spec.UtilityVolumes[i], status)
		return
	}
	// The handler never saw a Pending volume, so nothing is mounted. It unmounts any other volume first.
	if status.Phase == kubevirtv1.VolumePending || status.Phase == "" || status.Phase == kubevirtv1.VolumeUnMountedFromPod {
		d.detachVolume(in, status)
		return
	}
	d.Status = append(d.Status, status)
}

// afterEnd removes a volume of an instance that has ended, once no backup needs it any more.
func (d *decision) afterEnd(in input, status kubevirtv1.VolumeStatus) {
	if backup := backupWithPartialFiles(in, status.Name); backup != "" {
		if left := endOf(in.Instance).Add(holdLimit).Sub(in.Now); left > 0 {
			status.Reason = ReasonHeldByBackup
			status.Message = fmt.Sprintf("VirtualMachineBackup %s is still cleaning up on the volume.", backup)
			d.Status = append(d.Status, status)
			d.requeueAfter(left)
			return
		}
	}
	d.detachVolume(in, status)
}

// backupWithPartialFiles returns the name of the backup that may still have partial files on the volume, or an empty name.
func backupWithPartialFiles(in input, volume string) string {
	for i := range in.Backups {
		b := &in.Backups[i]
		if b.Status.InstanceUID != in.Instance.UID || layout.BackupUtilityVolume(b.UID) != volume {
			continue
		}
		switch b.Status.Phase {
		case backupv1.BackupStarting, backupv1.BackupCopying, backupv1.BackupServing, backupv1.BackupCopied, backupv1.BackupCopyFailed, backupv1.BackupPruning:
			return b.Name
		case backupv1.BackupPending, backupv1.BackupAttaching, backupv1.BackupPruned, backupv1.BackupDone, backupv1.BackupFailed:
			// Nothing was written yet, or nothing partial is left.
		}
	}
	return ""
}

// endOf returns when the instance ended.
func endOf(instance *kubevirtv1.VirtualMachineInstance) time.Time {
	var end time.Time
	for _, t := range instance.Status.PhaseTransitionTimestamps {
		if t.Phase.Final() && t.PhaseTransitionTimestamp.After(end) {
			end = t.PhaseTransitionTimestamp.Time
		}
	}
	return end
}

// detachVolume deletes the attachment pod; the entry goes once the pod is gone. Before that, it records that nothing is
// mounted, with the version of the instance that was read. If the volume was handed to the handler in the meantime,
// that write fails and the pod stays.
func (d *decision) detachVolume(in input, status kubevirtv1.VolumeStatus) {
	pod := in.Pods[status.Name]
	if pod == nil {
		return
	}
	d.deletePod(pod)
	status.Phase, status.Reason, status.Message = kubevirtv1.VolumeUnMountedFromPod, "", ""
	d.Status = append(d.Status, status)
}

func (d *decision) deletePod(pod *corev1.Pod) {
	if pod.DeletionTimestamp == nil {
		d.Delete = append(d.Delete, pod)
	}
}

func (d *decision) requeueAfter(after time.Duration) {
	if d.RequeueAfter == 0 || after < d.RequeueAfter {
		d.RequeueAfter = after
	}
}
