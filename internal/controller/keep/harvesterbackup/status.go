package harvesterbackup

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/keep/condition"
	"github.com/varvebackup/varve/internal/datamove"
)

// Harvester's messages.
const (
	messageProgressing = "Operation in progress"
	messageComplete    = "Operation complete"
	messageNotReady    = "Not ready"
)

// setProgressing says that the backup goes on, and what it waits for.
func setProgressing(s *harvesterv1.VirtualMachineBackupStatus, now time.Time, waiting string) {
	message := messageProgressing
	if waiting != "" {
		message += ": waits for " + waiting
	}
	s.ReadyToUse = ptr.To(false)
	condition.Set(&s.Conditions, now, harvesterv1.ConditionProgressing, corev1.ConditionTrue, "", message)
	condition.Set(&s.Conditions, now, harvesterv1.ConditionReady, corev1.ConditionFalse, "", messageNotReady)
}

// setFailed ends the backup.
func setFailed(s *harvesterv1.VirtualMachineBackupStatus, now time.Time, why string) {
	s.ReadyToUse = ptr.To(false)
	s.Error = &harvesterv1.Error{Time: ptr.To(metav1.NewTime(now)), Message: &why}
	condition.Set(&s.Conditions, now, harvesterv1.ConditionProgressing, corev1.ConditionFalse,
		harvesterv1.ReasonError, why)
	condition.Set(&s.Conditions, now, harvesterv1.ConditionReady, corev1.ConditionFalse, harvesterv1.ReasonError,
		messageNotReady)
}

// setReady ends the backup.
func setReady(s *harvesterv1.VirtualMachineBackupStatus, now time.Time) {
	s.ReadyToUse, s.Progress, s.Error = ptr.To(true), 100, nil
	s.CreationTime = ptr.To(metav1.NewTime(now))
	condition.Set(&s.Conditions, now, harvesterv1.ConditionMetadataReady, corev1.ConditionTrue, "", "")
	condition.Set(&s.Conditions, now, harvesterv1.ConditionProgressing, corev1.ConditionFalse, "", messageComplete)
	condition.Set(&s.Conditions, now, harvesterv1.ConditionReady, corev1.ConditionTrue, "", messageComplete)
}

// outcome is what the DataUploads of a backup say.
type outcome struct {
	// failed says why a disk will not be stored, or "". ended: no DataUpload goes on.
	failed string
	ended  bool
	// stored: every disk is.
	stored bool
	// waiting is what a DataUpload waits for, or "".
	waiting string
}

// observeUploads writes into the status how far the DataUploads are. one that is
// not there is nil.
func observeUploads(s *harvesterv1.VirtualMachineBackupStatus, now time.Time, all uploads) outcome {
	o := outcome{ended: true, stored: true}
	var done, total float64
	cause := false
	for i := range s.VolumeBackups {
		v := &s.VolumeBackups[i]
		u := all[v.VolumeName]
		observeVolume(v, now, u)
		itself := v.Error != nil && u != nil && u.Status.Phase == velerov2.PhaseFailed // others are canceled for it
		if v.Error != nil && (o.failed == "" || itself && !cause) {
			o.failed, cause = fmt.Sprintf("volume %s: %s", v.VolumeName, *v.Error.Message), itself
		}
		if u != nil && !u.Status.Phase.Ended() {
			o.ended = false
			if u.Status.Message != "" && o.waiting == "" {
				o.waiting = fmt.Sprintf("volume %s: %s", v.VolumeName, u.Status.Message)
			}
		}
		o.stored = o.stored && *v.ReadyToUse
		total += float64(v.VolumeSize)
		done += float64(v.VolumeSize) * float64(v.Progress) / 100
	}
	if total > 0 {
		s.Progress = max(s.Progress, min(99, int(done/total*100)))
	}
	return o
}

// describeDifference says which disk the hypervisor's backup has that was not planned, or "". One that was planned and
// that it does not have fails by its DataUpload.
func describeDifference(s *harvesterv1.VirtualMachineBackupStatus, included []backupv1.IncludedVolume) string {
	for _, v := range included {
		name := cmp.Or(v.Name, v.VolumeName) // as Varve and KubeVirt 1.8 have it
		planned := slices.ContainsFunc(s.VolumeBackups,
			func(p harvesterv1.VolumeBackup) bool { return p.VolumeName == name })
		left := slices.ContainsFunc(s.ExcludedVolumes, func(e harvesterv1.ExcludedVolume) bool {
			return e.Name == name && e.Reason != harvesterv1.NotRunningYet
		})
		if !planned && !left {
			return fmt.Sprintf("volume %s was added to the machine while the backup waited: create another backup",
				name)
		}
	}
	return ""
}

// observeVolume writes how far a disk is.
func observeVolume(v *harvesterv1.VolumeBackup, now time.Time, u *velerov2.DataUpload) {
	fail := func(why string) {
		v.ReadyToUse, v.Error = ptr.To(false), &harvesterv1.Error{Time: ptr.To(metav1.NewTime(now)), Message: &why}
	}
	if v.ReadyToUse == nil {
		v.ReadyToUse = ptr.To(false)
	}
	switch {
	case *v.ReadyToUse || v.Error != nil:
	case u == nil || u.DeletionTimestamp != nil:
		fail(fmt.Sprintf("DataUpload %s was deleted by somebody else", v.DataUpload))
	case u.Status.Phase == velerov2.PhaseCompleted:
		v.ReadyToUse, v.Progress = ptr.To(true), 100
		v.SnapshotID, v.VolumeSize, v.ChangedBytes = u.Status.SnapshotID, u.Status.Progress.TotalBytes, u.Status.IncrementalBytes
		v.FullReason = u.Status.DataMoverResult[datamove.ResultFullReason]
		v.CreationTime = u.Status.CompletionTimestamp
	case u.Status.Phase.Ended():
		fail(cmp.Or(u.Status.Message, fmt.Sprintf("DataUpload %s is %s", u.Name, u.Status.Phase)))
	default:
		if p := u.Status.Progress; p.TotalBytes > 0 {
			v.Progress = max(v.Progress, min(99, int(float64(p.BytesDone)/float64(p.TotalBytes)*100)))
		}
	}
}
