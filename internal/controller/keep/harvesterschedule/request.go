package harvesterschedule

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// pendingRequest returns the time of the run that somebody asked for, and that was not dealt with, or zero. One from
// before the schedule was made was copied with it.
func (in *input) pendingRequest(s *harvesterv1.ScheduleVMBackupStatus) time.Time {
	asked, err := in.readRequest()
	if err != nil || asked.Before(in.schedule.CreationTimestamp.Truncate(time.Minute)) ||
		s.LastRequestedTime != nil && s.LastRequestedTime.Time.Equal(asked) {
		return time.Time{}
	}
	return asked
}

// dueRequest is pendingRequest if that time has come.
func (in *input) dueRequest(s *harvesterv1.ScheduleVMBackupStatus) time.Time {
	asked := in.pendingRequest(s)
	if asked.After(in.now) {
		return time.Time{}
	}
	return asked
}

// readRequest returns what AnnotationRunAt says, or zero.
func (in *input) readRequest() (time.Time, error) {
	text := in.schedule.Annotations[harvesterv1.AnnotationRunAt]
	if text == "" {
		return time.Time{}, nil
	}
	asked, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("no backup is made for the annotation %s, which is %.80q: it must be a time such "+
			"as 2026-12-31T23:00:00Z", harvesterv1.AnnotationRunAt, text)
	}
	return asked.Truncate(time.Minute), nil
}

func (in *input) checkRequest() error {
	_, err := in.readRequest()
	return err
}

// adoptRequested records a run that was asked for, whose backup was made, but not written down.
func (in *input) adoptRequested(s *harvesterv1.ScheduleVMBackupStatus, b *harvesterv1.VirtualMachineBackup) {
	asked := in.pendingRequest(s)
	if asked.IsZero() || b.Annotations[annotationRequested] != asked.UTC().Format(time.RFC3339) {
		return
	}
	s.LastRequestedTime = ptr.To(metav1.NewTime(asked))
	recordRun(s, harvesterv1.ScheduledRun{
		Time: metav1.NewTime(asked), Result: harvesterv1.RunStarted, Reason: harvesterv1.RunRequested, Backup: b.Name,
	})
}
