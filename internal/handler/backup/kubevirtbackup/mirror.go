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
	mirrorPhase(b, job)
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
	if b.Spec.IsPull() {
		mirrorPull(b, job)
	}
}

func mirrorPhase(b *backupv1.VirtualMachineBackup, job *launcherpb.Backup) {
	switch job.GetPhase() {
	case launcherpb.Backup_COPYING:
		if !b.Spec.IsPull() { // a backup in pull mode starts until it serves
			enterPhase(b, backupv1.BackupCopying, backupstate.Copying())
		}
	case launcherpb.Backup_SERVING:
		state := backupstate.Serving(b.Status.NodeName)
		if why := job.GetTunnel().GetError(); why != "" {
			state = state.With(backupstate.ReaderUnreachable(why))
		}
		enterPhase(b, backupv1.BackupServing, state)
	case launcherpb.Backup_FINISHING: // of a backup in push mode
		enterPhase(b, backupv1.BackupCopying, backupstate.Sealing())
	case launcherpb.Backup_DONE:
		state := backupstate.Copied()
		if b.Spec.IsPull() {
			state = backupstate.Collected()
		}
		enterPhase(b, backupv1.BackupCopied, state)
	case launcherpb.Backup_PHASE_UNSPECIFIED, launcherpb.Backup_PREPARING, launcherpb.Backup_FAILED:
	}
}

// lowScratch is the share of a scratch claim below which its free space is called low.
const lowScratch = 0.25

// mirrorPull writes what only a backup in pull mode has.
func mirrorPull(b *backupv1.VirtualMachineBackup, job *launcherpb.Backup) {
	s := &b.Status
	s.MovedBytes = int64(job.GetProcessedBytes()) //nolint:gosec // what clients have read
	s.Moved = backupstate.Moved(s.MovedBytes)
	if job.GetPhase() != launcherpb.Backup_SERVING {
		return
	}
	used, free := int64(job.GetScratchUsedBytes()), int64(job.GetScratchFreeBytes()) //nolint:gosec // a volume's size
	if used == 0 && free == 0 {
		return // the launcher has not looked yet
	}
	s.Scratch = &backupv1.ScratchSpace{UsedBytes: used, FreeBytes: free}
	condition := metav1.Condition{Type: backupv1.ConditionScratchLow, Status: metav1.ConditionFalse, ObservedGeneration: b.Generation}
	state := backupstate.ScratchSufficient(b.Spec.PVCName, used, free)
	if float64(free) < lowScratch*float64(used+free) {
		condition.Status = metav1.ConditionTrue
		state = backupstate.ScratchLow(b.Spec.PVCName, used, free)
	}
	if condition.Status == metav1.ConditionFalse && meta.FindStatusCondition(s.Conditions, condition.Type) == nil {
		return // nobody needs to know
	}
	condition.Reason, condition.Message = state.Reason, state.Message
	meta.SetStatusCondition(&s.Conditions, condition)
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
