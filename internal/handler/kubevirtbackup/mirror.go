package kubevirtbackup

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// mirrorJob writes what the launcher reports about a running or finished job into the backup's status. It leaves the
// phase of a failed job to the caller, who knows the reasons.
func mirrorJob(b *backupv1.VirtualMachineBackup, job *launcherpb.Backup) {
	s := &b.Status
	switch job.GetPhase() {
	case launcherpb.Backup_COPYING, launcherpb.Backup_SERVING:
		enterPhase(b, backupv1.BackupCopying, backupstate.Copying())
	case launcherpb.Backup_FINISHING:
		enterPhase(b, backupv1.BackupCopying, backupstate.Sealing())
	case launcherpb.Backup_DONE:
		enterPhase(b, backupv1.BackupCopied, backupstate.Copied())
	case launcherpb.Backup_PHASE_UNSPECIFIED, launcherpb.Backup_PREPARING, launcherpb.Backup_FAILED:
	}
	if t := job.GetPointInTime(); t.IsValid() && t.AsTime().Unix() > 0 {
		// The API's times have whole seconds.
		at := metav1.NewTime(t.AsTime()).Rfc3339Copy()
		s.StartTimestamp = &at
	}
	if job.GetPhase() == launcherpb.Backup_DONE {
		s.ManifestSHA256 = job.GetManifestSha256()
	}
	s.CopyMillis, s.SealMillis = job.GetCopyMillis(), job.GetSealMillis()
	mirrorVolumes(s, job)
	mirrorProgress(s, job)
	mirrorQuiesce(b, job)
}

func mirrorProgress(s *backupv1.VirtualMachineBackupStatus, job *launcherpb.Backup) {
	total, processed := job.GetTotalBytes(), min(job.GetProcessedBytes(), job.GetTotalBytes())
	percent := "0%"
	switch {
	case job.GetPhase() == launcherpb.Backup_DONE:
		percent = "100%"
	case total > 0:
		// Users would take 100% for done, but the files do not have their final names yet.
		percent = fmt.Sprintf("%d%%", min(99, int(float64(processed)/float64(total)*100)))
	}
	if job.GetPhase() >= launcherpb.Backup_COPYING && job.GetPhase() != launcherpb.Backup_FAILED {
		s.Progress = &backupv1.Progress{TotalBytes: int64(total), ProcessedBytes: int64(processed), Percent: percent} //nolint:gosec // disk sizes
	}
}

func mirrorVolumes(s *backupv1.VirtualMachineBackupStatus, job *launcherpb.Backup) {
	s.MovedBytes = 0
	for _, v := range job.GetVolumes() {
		// Mirror only the volumes of the plan: a launcher must not decide about the rest of the object.
		i := slices.IndexFunc(s.IncludedVolumes, func(w backupv1.IncludedVolume) bool { return w.Name == v.GetVolume() })
		if i < 0 {
			continue
		}
		w := &s.IncludedVolumes[i]
		w.MovedBytes, w.File, w.SHA256 = int64(v.GetMovedBytes()), v.GetFile(), v.GetSha256() //nolint:gosec // a file's size
		mirrorFallback(w, v)
		if v.GetVirtualBytes() > 0 {
			w.VirtualBytes = int64(v.GetVirtualBytes()) //nolint:gosec // a disk's size
		}
		s.MovedBytes += w.MovedBytes
	}
	s.Moved = backupstate.Moved(s.MovedBytes)
	if slices.ContainsFunc(s.IncludedVolumes, isIncremental) {
		s.BackupType = backupv1.Incremental
	} else {
		s.BackupType = backupv1.Full
	}
	s.Type = s.BackupType
}

func isIncremental(v backupv1.IncludedVolume) bool { return v.Type == backupv1.Incremental }

// mirrorFallback records that the launcher did not find a disk's parent on the target. Only the launcher sees the
// target.
func mirrorFallback(planned *backupv1.IncludedVolume, told *launcherpb.BackedUpVolume) {
	reason := backupv1.FullReason(told.GetFullReason())
	if planned.Type == backupv1.Incremental && !told.GetIncremental() && (reason == backupv1.FullParentMissing || reason == backupv1.FullParentChanged) {
		planned.Type, planned.FullReason = backupv1.Full, reason
	}
}

func mirrorQuiesce(b *backupv1.VirtualMachineBackup, job *launcherpb.Backup) {
	var quiesced backupstate.State
	status := metav1.ConditionFalse
	switch message := job.GetQuiesceMessage(); job.GetQuiesce() {
	case launcherpb.Backup_FROZEN:
		status, quiesced = metav1.ConditionTrue, backupstate.Frozen(message)
		b.Status.FrozenMillis = ptr.To(job.GetFrozenMillis())
	case launcherpb.Backup_SKIPPED:
		quiesced = backupstate.QuiesceSkipped(message)
	case launcherpb.Backup_AGENT_ABSENT:
		quiesced = backupstate.AgentAbsent(message)
	case launcherpb.Backup_FREEZE_FAILED:
		quiesced = backupstate.FreezeFailed(message)
	case launcherpb.Backup_THAWED_EARLY:
		quiesced = backupstate.ThawedEarly(message)
		b.Status.FrozenMillis = ptr.To(job.GetFrozenMillis())
	case launcherpb.Backup_QUIESCE_UNSPECIFIED:
		return
	}
	meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
		Type: backupv1.ConditionQuiesced, Status: status, ObservedGeneration: b.Generation, Reason: quiesced.Reason, Message: quiesced.Message,
	})
}

// enterCopyFailed sets the backup to CopyFailed.
func enterCopyFailed(b *backupv1.VirtualMachineBackup, end backupstate.State) {
	enterPhase(b, backupv1.BackupCopyFailed, end)
}

func enterPhase(b *backupv1.VirtualMachineBackup, phase backupv1.BackupPhase, state backupstate.State) {
	b.Status.Phase, b.Status.Reason, b.Status.Message = phase, state.Reason, state.Message
}
