package kubevirtbackup

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/reconcile"
)

// setConditions sets the conditions that follow from the phase. Quiesced belongs to the handler and stays as it is. endsWell says that the
// deletion of a backup in the phase Serving is a success.
func setConditions(s *backupv1.VirtualMachineBackupStatus, generation int64, deleting, endsWell bool, now time.Time) {
	active := backupstate.FindPhase(s.Phase).Condition
	for _, t := range []string{
		backupv1.ConditionInitializing, backupv1.ConditionProgressing, backupv1.ConditionComplete, backupv1.ConditionFailed,
	} {
		c := metav1.Condition{Type: t, Status: metav1.ConditionFalse, Reason: string(s.Phase)}
		if t == active {
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, s.Reason, s.Message
			if s.Phase == backupv1.BackupCopying {
				copying := backupstate.CopyingCondition()
				c.Reason, c.Message = copying.Reason, copying.Message
			}
			if s.Phase == backupv1.BackupServing {
				c.Reason, c.Message = servingCondition(s)
			}
		}
		setCondition(s, c, generation, now)
	}
	setCondition(s, doneCondition(s), generation, now)
	endService(s, generation, now)
	if !deleting && meta.FindStatusCondition(s.Conditions, backupv1.ConditionDeleting) == nil {
		return
	}
	c := metav1.Condition{Type: backupv1.ConditionDeleting, Status: metav1.ConditionFalse, Reason: string(s.Phase)}
	if deleting {
		c.Status, c.Message = metav1.ConditionTrue, backupstate.DeletingMessage
	}
	setCondition(s, c, generation, now)
	c.Type = backupv1.ConditionAborting
	if s.Phase.Final() || s.Result == backupv1.BackupSucceeded || s.Phase == backupv1.BackupCopied || s.Phase == backupv1.BackupServing && endsWell {
		c.Status, c.Message = metav1.ConditionFalse, ""
	}
	setCondition(s, c, generation, now)
}

// servingCondition returns what the condition Progressing says of a backup in pull mode. Clients of KubeVirt 1.9 wait for the reason
// ExportReady.
func servingCondition(s *backupv1.VirtualMachineBackupStatus) (reason, message string) {
	serving := backupstate.ServingCondition()
	if meta.IsStatusConditionTrue(s.Conditions, backupv1.ConditionReady) {
		return backupv1.ReasonExportReady, serving.Message
	}
	return serving.Reason, serving.Message
}

// maxReasonBytes is how long the reason of a condition may be.
const maxReasonBytes = 1024

// doneCondition returns the condition Done. It says that the backup has ended, well or not, and its reason says which, as in
// KubeVirt 1.8: its clients wait for nothing else.
func doneCondition(s *backupv1.VirtualMachineBackupStatus) metav1.Condition {
	c := metav1.Condition{Type: backupv1.ConditionDone, Status: metav1.ConditionFalse, Reason: string(s.Phase)}
	if !s.Phase.Final() {
		return c
	}
	c.Status, c.Reason, c.Message = metav1.ConditionTrue, backupv1.DoneSucceeded, s.Message
	if s.Phase == backupv1.BackupFailed {
		c.Reason = backupv1.DoneFailed + s.Reason + ": " + s.Message
	}
	c.Reason = reconcile.CutText(c.Reason, maxReasonBytes)
	return c
}

func setCondition(s *backupv1.VirtualMachineBackupStatus, c metav1.Condition, generation int64, now time.Time) {
	if c.Reason == "" {
		c.Reason = "Unknown" // the API requires one
	}
	c.ObservedGeneration = generation
	if old := meta.FindStatusCondition(s.Conditions, c.Type); old == nil || old.Status != c.Status {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	meta.SetStatusCondition(&s.Conditions, c)
}
