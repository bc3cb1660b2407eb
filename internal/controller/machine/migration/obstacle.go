package migration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/reconcile"
)

// whyRefused says why a migration that has not begun fails at once, or returns nil.
func whyRefused(in input) *problem {
	m := in.Migration
	switch {
	case m.DeletionTimestamp != nil:
		return whyDeleted()
	case in.Instance == nil:
		return problemf(ReasonInstanceNotFound, "VirtualMachineInstance %s does not exist: start its VirtualMachine.",
			m.Spec.VMIName)
	case in.Instance.DeletionTimestamp != nil || in.Instance.Status.Phase != kubevirtv1.PhaseRunning:
		return notRunning(in.Instance)
	}
	if other := aheadOf(in); other != "" {
		return problemf(ReasonAnotherMigration, "VirtualMachineInstanceMigration %s already moves VirtualMachineInstance "+
			"%s: wait until it has ended, or delete it to abort it.", other, in.Instance.Name)
	}
	if s := in.Instance.Status.MigrationState; !s.Ended() {
		return problemf(ReasonAnotherMigration, "The migration with UID %s still moves VirtualMachineInstance %s: try "+
			"again when it has ended.", s.MigrationUID, in.Instance.Name)
	}
	return in.NotMigratable
}

func whyDeleted() *problem {
	return &problem{ReasonDeleted, "The VirtualMachineInstanceMigration was deleted."}
}

func notRunning(i *kubevirtv1.VirtualMachineInstance) *problem {
	if i.DeletionTimestamp != nil {
		return problemf(ReasonInstanceNotRunning, "VirtualMachineInstance %s is being stopped.", i.Name)
	}
	return problemf(ReasonInstanceNotRunning, "VirtualMachineInstance %s is in phase %s: only a running guest can be "+
		"moved.", i.Name, cmp.Or(i.Status.Phase, kubevirtv1.PhasePending))
}

// aheadOf returns the name of another migration of the same instance that goes before this one, or an empty name.
func aheadOf(in input) string {
	m := in.Migration
	for i := range in.Others {
		other := &in.Others[i]
		if other.Namespace != m.Namespace || other.Spec.VMIName != m.Spec.VMIName || other.UID == m.UID {
			continue
		}
		if other.Status.Phase.Underway() || isOlder(other, m) {
			return other.Name
		}
	}
	return ""
}

func isOlder(a, b *kubevirtv1.VirtualMachineInstanceMigration) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0
}

// whyStopped says why a migration that has pods, and that the handlers do not know yet, cannot go on.
func whyStopped(in input) *problem {
	state := in.Migration.Status.MigrationState
	switch {
	case in.Migration.DeletionTimestamp != nil:
		return whyDeleted()
	case in.Instance == nil || state == nil || instancepod.ActiveLauncher(in.Instance) != state.SourcePod:
		return problemf(ReasonInstanceReplaced, "VirtualMachineInstance %s was deleted or started again.",
			in.Migration.Spec.VMIName)
	case in.Instance.DeletionTimestamp != nil || in.Instance.Status.Phase != kubevirtv1.PhaseRunning:
		return notRunning(in.Instance)
	}
	return nil
}

func whyTargetEnded(in input) *problem {
	if in.Target == nil || in.Target.DeletionTimestamp == nil && !instancepod.HasEnded(in.Target) {
		return nil
	}
	return problemf(ReasonTargetPodEnded, "Target pod %s has ended or is being deleted: %s.", in.Target.Name,
		cmp.Or(in.Target.Status.Message, in.Target.Status.Reason, string(in.Target.Status.Phase)))
}

// whyAborted says why a migration that runs must be aborted, or returns when to look again.
func whyAborted(in input, s *kubevirtv1.MigrationState) (*problem, time.Duration) {
	if asked := findCondition(in.Migration.Status.Conditions, kubevirtv1.MigrationAbortRequested); asked != nil &&
		asked.Status == corev1.ConditionTrue {
		return &problem{asked.Reason, asked.Message}, 0
	}
	if in.Migration.DeletionTimestamp != nil {
		return whyDeleted(), 0
	}
	if in.Instance.DeletionTimestamp != nil {
		return notRunning(in.Instance), 0
	}
	limit, what := prepareLimit, fmt.Sprintf("The handler of node %s has not prepared target pod %s within %s: check "+
		"the handler's pod.", s.TargetNode, s.TargetPod, prepareLimit)
	if s.TargetNodeAddress != "" {
		seconds := in.Settings.CompletionSeconds(in.Instance.Spec.Domain.Memory)
		limit = prepareLimit + time.Duration(seconds)*time.Second + sourceGrace
		what = fmt.Sprintf("The handler of node %s has not ended the migration within %s.", s.SourceNode, limit)
	}
	var started time.Time
	if s.StartTimestamp != nil {
		started = s.StartTimestamp.Time
	}
	left := started.Add(limit).Sub(in.Now)
	if left <= 0 {
		return &problem{ReasonTimeout, what}, 0
	}
	return nil, left
}

// waitForVolumes reports whether the migration waits for utility volumes, a backup or a freeze. It fails the
// migration when that takes too long. The wait counts from when the migration noticed it, which is its creation
// unless it was queued first.
func (d *decision) waitForVolumes(in input) bool {
	i := in.Instance
	limit := time.Duration(in.Settings.UtilityVolumesSeconds()) * time.Second
	seconds := int64(limit / time.Second)
	volumes, backup := hasUtilityVolumes(i), backupOf(i)
	first := findCondition(in.Migration.Status.Conditions, kubevirtv1.MigrationBlockedByUtilityVolumes) == nil
	d.setBlocked(in, kubevirtv1.MigrationBlockedByUtilityVolumes, volumes, problemf(ReasonUtilityVolumes,
		"Migration is waiting for utility volumes to detach. Will timeout in %d seconds.", seconds))
	d.setBlocked(in, kubevirtv1.MigrationBlockedByBackup, backup != "", problemf(ReasonBackup,
		"Waiting for backup %s to complete", backup))
	frozen := i.Status.FSFreezeStatus != ""
	if c := findCondition(d.Status.Conditions, kubevirtv1.MigrationWaiting); c != nil &&
		frozen != (c.Reason == ReasonFrozen) && (frozen || c.Reason != ReasonQueued) {
		d.removeConditions(kubevirtv1.MigrationWaiting) // it was about another wait, or the freeze is over
	}
	if frozen {
		d.setCondition(in, kubevirtv1.MigrationWaiting, problemf(ReasonFrozen,
			"The guest's file systems are frozen. The migration fails if they are not thawed within %s.", limit))
	}
	if !volumes && backup == "" && !frozen {
		return false
	}
	if volumes && first {
		d.Note = &note{corev1.EventTypeWarning, "UtilityVolumeMigrationPending", fmt.Sprintf(
			"Migration waiting for utility volumes to detach from VMI [%s/%s]. Will timeout in %d seconds.",
			i.Namespace, i.Name, seconds)}
	}
	left := d.blockedSince(in).Add(limit).Sub(in.Now)
	if left > 0 {
		d.RequeueAfter = left
		return true
	}
	switch {
	case volumes:
		d.markFailed(in, problemf(ReasonTimeout, "Migration timeout waiting for utility volumes to detach from VMI "+
			"[%s/%s]. Utility volumes still present after %d seconds.", i.Namespace, i.Name, seconds))
	case backup != "":
		d.markFailed(in, problemf(ReasonTimeout, "Migration timeout waiting for backup %s of VMI [%s/%s], which still "+
			"runs after %d seconds.", backup, i.Namespace, i.Name, seconds))
	default:
		d.markFailed(in, problemf(ReasonTimeout, "The guest's file systems are still frozen after %d seconds.", seconds))
	}
	return true
}

// setBlocked sets a condition to True, or removes it.
func (d *decision) setBlocked(in input, t kubevirtv1.MigrationConditionType, blocked bool, p *problem) {
	if blocked {
		d.setCondition(in, t, p)
		return
	}
	d.removeConditions(t)
}

// blockedSince returns since when one of the conditions that block the migration has been True.
func (d *decision) blockedSince(in input) time.Time {
	since := in.Now
	for _, t := range []kubevirtv1.MigrationConditionType{
		kubevirtv1.MigrationBlockedByUtilityVolumes,
		kubevirtv1.MigrationBlockedByBackup, kubevirtv1.MigrationWaiting,
	} {
		if c := findCondition(d.Status.Conditions, t); c != nil && c.LastTransitionTime.Time.Before(since) &&
			c.Reason != ReasonQueued {
			since = c.LastTransitionTime.Time
		}
	}
	return since
}

// hasUtilityVolumes reports whether a utility volume is wanted, or has not been detached yet.
func hasUtilityVolumes(i *kubevirtv1.VirtualMachineInstance) bool {
	return len(i.Spec.UtilityVolumes) > 0 ||
		slices.ContainsFunc(i.Status.VolumeStatus, func(s kubevirtv1.VolumeStatus) bool { return s.HotplugVolume != nil })
}

// backupOf returns the name of the backup that holds the instance, or an empty name.
func backupOf(i *kubevirtv1.VirtualMachineInstance) string {
	if t := i.Status.ChangedBlockTracking; t != nil && t.BackupStatus != nil {
		return cmp.Or(t.BackupStatus.BackupName, "without a name")
	}
	return ""
}

// waitForTurn reports whether the migration waits because enough others run. Those that have waited longer go first.
func (d *decision) waitForTurn(in input) bool {
	node := in.Instance.Status.NodeName
	var running, outbound, ahead int
	for i := range in.Others {
		other := &in.Others[i]
		switch waits := findCondition(other.Status.Conditions, kubevirtv1.MigrationWaiting); {
		case other.Status.Phase.Underway():
			running++
			if s := other.Status.MigrationState; s != nil && s.SourceNode == node {
				outbound++
			}
		case waits != nil && waits.Reason == ReasonQueued && isOlder(other, in.Migration):
			ahead++
		}
	}
	var why string
	switch cluster, perNode := in.Settings.PerCluster(), in.Settings.OutboundPerNode(); {
	case outbound >= perNode:
		why = fmt.Sprintf("%d migrations leave node %s, which is as many as may at a time "+
			"(parallelOutboundMigrationsPerNode).", outbound, node)
	case running >= cluster || running+ahead >= cluster && running > 0:
		why = fmt.Sprintf("%d migrations run and %d wait longer; %d may run at a time (parallelMigrationsPerCluster).",
			running, ahead, cluster)
	default:
		return false
	}
	waited := in.Now.Sub(in.Migration.CreationTimestamp.Time)
	if waited >= queueLimit {
		d.markFailed(in, problemf(ReasonTimeout, "The migration's turn did not come within %s: %s", queueLimit, why))
		return true
	}
	d.setCondition(in, kubevirtv1.MigrationWaiting, problemf(ReasonQueued,
		"%s The migration fails if its turn does not come within %s.", why, queueLimit))
	d.RequeueAfter = reconcile.PollInterval(waited)
	return true
}
