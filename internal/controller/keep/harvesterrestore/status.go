package harvesterrestore

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/keep/condition"
)

// Harvester's messages.
const (
	messageInitializing = "Initializing VirtualMachineRestore"
	messageClaims       = "Creating new PVCs"
	messageMachine      = "Waiting for target vm to be ready"
	messageComplete     = "Operation complete"
)

// Progress in percent, when the disks are restored and when the machine is made.
const (
	disksRestored = 90
	machineMade   = 95
)

// setProgressing says what the restore does, and what it waits for.
func setProgressing(s *harvesterv1.VirtualMachineRestoreStatus, now time.Time, message, waiting string) {
	if waiting != "" {
		message += ": waits for " + waiting
	}
	s.Complete = ptr.To(false)
	condition.Set(&s.Conditions, now, harvesterv1.ConditionProgressing, corev1.ConditionTrue, "", message)
	condition.Set(&s.Conditions, now, harvesterv1.ConditionReady, corev1.ConditionFalse, "", message)
}

func setFailed(s *harvesterv1.VirtualMachineRestoreStatus, now time.Time, why string) {
	s.Complete = ptr.To(false)
	condition.Set(&s.Conditions, now, harvesterv1.ConditionProgressing, corev1.ConditionFalse,
		harvesterv1.ReasonError, why)
	condition.Set(&s.Conditions, now, harvesterv1.ConditionReady, corev1.ConditionFalse, harvesterv1.ReasonError, why)
}

func setComplete(s *harvesterv1.VirtualMachineRestoreStatus, now time.Time) {
	s.Complete, s.Progress, s.RestoreTime = ptr.To(true), 100, ptr.To(metav1.NewTime(now))
	condition.Set(&s.Conditions, now, harvesterv1.ConditionProgressing, corev1.ConditionFalse, "", messageComplete)
	condition.Set(&s.Conditions, now, harvesterv1.ConditionReady, corev1.ConditionTrue, "", messageComplete)
}

// outcome is what the DataDownloads of a restore say.
type outcome struct {
	// failed says why a disk will not be restored, or "". ended: no DataDownload goes on. restored: every disk is.
	failed          string
	ended, restored bool
	// waiting is what a DataDownload waits for, or "".
	waiting string
}

// observeDownloads writes into the status how far the DataDownloads are. downloads has them by the names of the volumes; one
// that is not there is nil.
func observeDownloads(s *harvesterv1.VirtualMachineRestoreStatus, moves downloads) outcome {
	o := outcome{ended: true, restored: true}
	var done, total float64
	for i := range s.VolumeRestores {
		v := &s.VolumeRestores[i]
		d := moves[v.VolumeName]
		fail := func(format string, args ...any) {
			o.restored = false
			if o.failed == "" {
				o.failed = fmt.Sprintf("volume %s: ", v.VolumeName) + fmt.Sprintf(format, args...)
			}
		}
		switch {
		case v.Progress == 100:
		case d == nil || d.DeletionTimestamp != nil:
			fail("DataDownload %s was deleted by somebody else", v.DataDownload)
		case d.Status.Phase == velerov2.PhaseCompleted:
			v.Progress = 100
		case d.Status.Phase.Ended():
			fail("DataDownload %s is %s: %s", d.Name, d.Status.Phase, d.Status.Message)
		default:
			o.ended, o.restored = false, false
			if p := d.Status.Progress; p.TotalBytes > 0 {
				v.Progress = max(v.Progress, min(99, int(float64(p.BytesDone)/float64(p.TotalBytes)*100)))
			}
			if d.Status.Message != "" && o.waiting == "" {
				o.waiting = fmt.Sprintf("volume %s: %s", v.VolumeName, d.Status.Message)
			}
		}
		total += float64(v.VolumeSize)
		done += float64(v.VolumeSize) * float64(v.Progress) / 100
	}
	if total > 0 {
		s.Progress = max(s.Progress, int(done/total*disksRestored))
	}
	return o
}
