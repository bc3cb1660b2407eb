package kubevirtbackup

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// copyingMessage is the message of the Progressing condition while data moves. The handler's own message changes
// with every progress report, and a condition that followed it would double the writes.
const copyingMessage = "Data moves to the target; status.progress says how far it is."

// project sets the conditions that follow from the phase. Quiesced belongs to the handler and stays as it is.
func project(s *backupv1.VirtualMachineBackupStatus, generation int64, deleting bool, now time.Time) {
	active := activeCondition(s.Phase)
	for _, t := range []string{
		backupv1.ConditionInitializing, backupv1.ConditionProgressing, backupv1.ConditionDone, backupv1.ConditionFailed,
	} {
		c := metav1.Condition{Type: t, Status: metav1.ConditionFalse, Reason: string(s.Phase)}
		if t == active {
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, s.Reason, s.Message
			if s.Phase == backupv1.BackupCopying {
				c.Reason, c.Message = backupv1.ReasonCopying, copyingMessage
			}
		}
		set(s, c, generation, now)
	}
	if !deleting && meta.FindStatusCondition(s.Conditions, backupv1.ConditionDeleting) == nil {
		return
	}
	c := metav1.Condition{Type: backupv1.ConditionDeleting, Status: metav1.ConditionFalse, Reason: string(s.Phase)}
	if deleting {
		c.Status, c.Message = metav1.ConditionTrue, "The object goes when what it left on the node and on the target is cleaned up."
	}
	set(s, c, generation, now)
}

func activeCondition(p backupv1.BackupPhase) string {
	switch p {
	case "", backupv1.BackupPending, backupv1.BackupAttaching, backupv1.BackupStarting:
		return backupv1.ConditionInitializing
	case backupv1.BackupDone:
		return backupv1.ConditionDone
	case backupv1.BackupFailed:
		return backupv1.ConditionFailed
	default:
		return backupv1.ConditionProgressing
	}
}

func set(s *backupv1.VirtualMachineBackupStatus, c metav1.Condition, generation int64, now time.Time) {
	if c.Reason == "" {
		c.Reason = "Unknown" // the API requires one
	}
	c.ObservedGeneration = generation
	if old := meta.FindStatusCondition(s.Conditions, c.Type); old == nil || old.Status != c.Status {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	meta.SetStatusCondition(&s.Conditions, c)
}
