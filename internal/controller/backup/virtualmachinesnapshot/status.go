package virtualmachinesnapshot

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
)

// Reasons of conditions, which are sentences as in KubeVirt.
const (
	reasonProgressing = "Source locked and operation in progress"
	reasonNotReady    = "Not ready"
	reasonComplete    = "Operation complete"
	reasonFailed      = "Operation failed"
)

// setCondition writes a condition. One whose status stays keeps its time.
func setCondition(
	s *vmsnapshotv1.VirtualMachineSnapshotStatus, now time.Time, kind vmsnapshotv1.ConditionType,
	status corev1.ConditionStatus, reason, message string,
) {
	c := vmsnapshotv1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	i := slices.IndexFunc(s.Conditions, func(c vmsnapshotv1.Condition) bool { return c.Type == kind })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[i].Status == status {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
}

// setProgress says what the snapshot waits for.
func setProgress(s *vmsnapshotv1.VirtualMachineSnapshotStatus, now time.Time, waiting string) {
	if s.Phase == "" {
		s.Phase, s.ReadyToUse = vmsnapshotv1.InProgress, ptr.To(false)
	}
	setCondition(s, now, vmsnapshotv1.ConditionProgressing, corev1.ConditionTrue, reasonProgressing,
		"waiting for "+waiting)
	setCondition(s, now, vmsnapshotv1.ConditionReady, corev1.ConditionFalse, reasonNotReady, "")
}

func setSucceeded(s *vmsnapshotv1.VirtualMachineSnapshotStatus, now time.Time) {
	s.Phase, s.ReadyToUse, s.Error = vmsnapshotv1.Succeeded, ptr.To(true), nil
	setCondition(s, now, vmsnapshotv1.ConditionProgressing, corev1.ConditionFalse, reasonComplete, "")
	setCondition(s, now, vmsnapshotv1.ConditionReady, corev1.ConditionTrue, reasonComplete, "")
}

func setFailed(s *vmsnapshotv1.VirtualMachineSnapshotStatus, now time.Time, why string) {
	s.Phase, s.ReadyToUse = vmsnapshotv1.Failed, ptr.To(false)
	s.Error = &vmsnapshotv1.Error{Time: ptr.To(metav1.NewTime(now.Truncate(time.Second))), Message: ptr.To(why)}
	setCondition(s, now, vmsnapshotv1.ConditionProgressing, corev1.ConditionFalse, reasonFailed, "")
	setCondition(s, now, vmsnapshotv1.ConditionReady, corev1.ConditionFalse, reasonFailed, "")
	setCondition(s, now, vmsnapshotv1.ConditionFailure, corev1.ConditionTrue, reasonFailed, why)
}

// addIndication adds an indication.
func addIndication(s *vmsnapshotv1.VirtualMachineSnapshotStatus, i vmsnapshotv1.Indication, format string, args ...any) {
	s.Indications = append(s.Indications, i)
	s.SourceIndications = append(s.SourceIndications, vmsnapshotv1.SourceIndication{
		Indication: i,
		Message:    fmt.Sprintf(format, args...),
	})
}

// crashConsistent says what the disks of a guest are like that was not frozen.
func crashConsistent(s *vmsnapshotv1.VirtualMachineSnapshotStatus) string {
	if s.SnapshotVolumes != nil && len(s.SnapshotVolumes.IncludedVolumes) > 1 {
		return "each disk is as after a power failure, and the disks are not of exactly the same moment"
	}
	return "the disk is as after a power failure"
}

// planFreeze asks for the freeze of a guest that runs, or says why there is none.
func (in *input) planFreeze(s *vmsnapshotv1.VirtualMachineSnapshotStatus, wanted bool) {
	addIndication(s, vmsnapshotv1.Online, "the guest was running")
	switch {
	case isPaused(in.instance):
		addIndication(s, vmsnapshotv1.Paused,
			"the guest was paused, so that its file systems could not be frozen: what it had not written is not "+
				"in the snapshot")
	case !wanted:
		addIndication(s, vmsnapshotv1.NoGuestAgent, "the guest was not frozen, as the annotation %s says: %s",
			vmsnapshotv1.AnnotationFreezeDeadline, crashConsistent(s))
	default:
		s.NodeName = in.instance.Status.NodeName
		s.Quiesce = &vmsnapshotv1.Quiesce{
			Request:     vmsnapshotv1.FreezeRequest,
			RequestTime: ptr.To(metav1.NewTime(in.now)),
		}
	}
}

// requestThaw asks for the thaw, or withdraws a freeze that was not answered.
func requestThaw(s *vmsnapshotv1.VirtualMachineSnapshotStatus, now time.Time) {
	if s.Quiesce != nil && s.Quiesce.Request == vmsnapshotv1.FreezeRequest {
		s.Quiesce.Request, s.Quiesce.RequestTime = vmsnapshotv1.ThawRequest, ptr.To(metav1.NewTime(now))
	}
}

// closeFreeze writes what became of the freeze when the handler has said so, or has had its time. It says whether nothing
// is to be waited for.
func (in *input) closeFreeze(s *vmsnapshotv1.VirtualMachineSnapshotStatus) (closed bool) {
	q := s.Quiesce
	if s.NodeName == "" || q == nil {
		return true
	}
	late := !in.now.Before(q.RequestTime.Add(in.thawPatience))
	switch {
	case q.State == vmsnapshotv1.NotFrozen:
		addIndication(s, vmsnapshotv1.NoGuestAgent, "the guest was not frozen (%s): %s", q.Message, crashConsistent(s))
	case q.State == vmsnapshotv1.Thawed:
		addIndication(s, vmsnapshotv1.GuestAgent, "the guest's file systems were frozen until the storage had all "+
			"snapshots")
	case q.State == vmsnapshotv1.ThawedEarly:
		addIndication(s, vmsnapshotv1.QuiesceTimeout,
			"the guest may have been thawed before the storage had all snapshots (%s): %s", q.Message,
			crashConsistent(s))
	case late && q.State == "":
		addIndication(s, vmsnapshotv1.NoGuestAgent,
			"the handler of node %s did not answer, so that the guest was not frozen: %s", s.NodeName,
			crashConsistent(s))
	case late:
		addIndication(s, vmsnapshotv1.QuiesceTimeout,
			"the handler of node %s did not say whether the guest was frozen until the storage had all snapshots: %s",
			s.NodeName, crashConsistent(s))
	default:
		return false
	}
	s.NodeName = ""
	return true
}

// contentStatus returns the status of the content.
func (in *input) contentStatus() *vmsnapshotv1.VirtualMachineSnapshotContentStatus {
	s := &vmsnapshotv1.VirtualMachineSnapshotContentStatus{ReadyToUse: ptr.To(true)}
	s.CreationTime, _ = in.findTaken()
	for _, v := range in.content.Spec.VolumeBackups {
		made := in.made[*v.VolumeSnapshotName]
		if made == nil {
			s.ReadyToUse = ptr.To(false)
			continue
		}
		one := vmsnapshotv1.VolumeSnapshotStatus{
			VolumeSnapshotName: made.Name, CreationTime: takenAt(made),
			ReadyToUse: ptr.To(isReady(made)),
		}
		if made.Status != nil && made.Status.Error != nil && !isReady(made) {
			one.Error = &vmsnapshotv1.Error{Time: made.Status.Error.Time, Message: made.Status.Error.Message}
			if s.Error == nil {
				s.Error = one.Error
			}
		}
		*s.ReadyToUse = *s.ReadyToUse && *one.ReadyToUse
		s.VolumeSnapshotStatus = append(s.VolumeSnapshotStatus, one)
	}
	return s
}
