package kubevirtbackup

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/reconcile"
)

// The unfinished backups of a machine form a line: the one that runs, then those that wait, oldest first. Each waits
// only for the one directly ahead of it. When a backup joins, leaves or ends, only the backup behind it and the first
// one waiting need a look. The rest cost nothing, however many there are.

// directlyAhead returns the backup of the same machine that goes directly ahead of b, or nil. Others may have b itself.
func directlyAhead(b *backupv1.VirtualMachineBackup, others []backupv1.VirtualMachineBackup) *backupv1.VirtualMachineBackup {
	var last *backupv1.VirtualMachineBackup
	for i := range others {
		if o := &others[i]; goesBefore(o, b) && (last == nil || standsBefore(last, o)) {
			last = o
		}
	}
	return last
}

// goesBefore reports whether o goes ahead of b, which waits.
func goesBefore(o, b *backupv1.VirtualMachineBackup) bool {
	switch {
	case o.UID == b.UID || o.Status.Phase.Final():
		return false
	case !isWaiting(o):
		return true
	default:
		return standsInLine(o) && isOlder(o, b)
	}
}

// standsBefore orders two backups that stand in line.
func standsBefore(a, b *backupv1.VirtualMachineBackup) bool {
	if isWaiting(a) != isWaiting(b) {
		return isWaiting(b)
	}
	return isOlder(a, b)
}

// standsInLine reports whether a backup that waits has a place in its machine's line. It has none while it waits for
// something of its own, such as its claim, and lets younger ones pass. What the machine itself lacks, they all lack.
func standsInLine(b *backupv1.VirtualMachineBackup) bool {
	if !isWaiting(b) || b.DeletionTimestamp != nil {
		return false
	}
	switch b.Status.Reason {
	case backupv1.ReasonOtherBackup, backupv1.ReasonNodeBusy, backupv1.ReasonVMNotFound, backupv1.ReasonVMNotRunning,
		backupv1.ReasonTrackingNotEnabled, backupv1.ReasonNoEligibleDisk:
		return true
	case backupv1.ReasonGateDisabled: // those that are pulled need one gate more
		return !b.Spec.IsPull()
	default: // not looked at yet
		return b.Status.Phase == ""
	}
}

// waitsBehindAnother reports whether a backup waits for another of its machine. Only that one's changes concern it.
func waitsBehindAnother(b *backupv1.VirtualMachineBackup) bool {
	return isWaiting(b) && b.DeletionTimestamp == nil && b.Status.Reason == backupv1.ReasonOtherBackup
}

func isWaiting(b *backupv1.VirtualMachineBackup) bool {
	return b.Status.Phase == "" || b.Status.Phase == backupv1.BackupPending
}

func isOlder(a, b *backupv1.VirtualMachineBackup) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// placeInLine says where a backup stands: nowhere, among those that wait, or as the one that runs.
func placeInLine(b *backupv1.VirtualMachineBackup) int {
	switch {
	case b.Status.Phase.Final():
		return 0
	case !isWaiting(b):
		return 2
	case standsInLine(b):
		return 1
	}
	return 0
}

// placeMoves passes what can change who is next in a line. One that joins does not: it is the last, or what waits
// behind it learns of it when its turn comes.
func placeMoves() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			old, ok := e.ObjectOld.(*backupv1.VirtualMachineBackup)
			now, also := e.ObjectNew.(*backupv1.VirtualMachineBackup)
			return ok && also && (old.UID != now.UID || placeInLine(old) != placeInLine(now) || old.Status.SourceName != now.Status.SourceName)
		},
	}
}

// firstInLine returns the first of a machine's backups that waits, or nil.
func firstInLine(backups []backupv1.VirtualMachineBackup) *backupv1.VirtualMachineBackup {
	var first *backupv1.VirtualMachineBackup
	for i := range backups {
		if b := &backups[i]; standsInLine(b) && (first == nil || isOlder(b, first)) {
			first = b
		}
	}
	return first
}

// firstBehind returns the backup that waits behind o's place by age, or nil. o may have left that place, or ended.
func firstBehind(o *backupv1.VirtualMachineBackup, backups []backupv1.VirtualMachineBackup) *backupv1.VirtualMachineBackup {
	var next *backupv1.VirtualMachineBackup
	for i := range backups {
		b := &backups[i]
		if b.UID != o.UID && standsInLine(b) && isOlder(o, b) && (next == nil || isOlder(b, next)) {
			next = b
		}
	}
	return next
}

// concernedByLine returns the backups that a change of o, one of the machine's, concerns: the first that waits, the one
// behind o's place, and those that wait for o, of which there is one as a rule.
func concernedByLine(o *backupv1.VirtualMachineBackup, backups []backupv1.VirtualMachineBackup) []backupv1.VirtualMachineBackup {
	first, next := firstInLine(backups), firstBehind(o, backups)
	var concerned []backupv1.VirtualMachineBackup
	for i := range backups {
		if b := &backups[i]; b == first || b == next || b.Status.WaitsBehind == o.Name && isWaiting(b) {
			concerned = append(concerned, *b)
		}
	}
	return concerned
}

// concernedByMachine returns the backups that a change of their machine concerns: all but those behind another.
func concernedByMachine(backups []backupv1.VirtualMachineBackup) []backupv1.VirtualMachineBackup {
	var first types.UID
	if b := firstInLine(backups); b != nil {
		first = b.UID
	}
	return slices.DeleteFunc(backups, func(b backupv1.VirtualMachineBackup) bool { return waitsBehindAnother(&b) && b.UID != first })
}

// turnOfAnother returns an obstacle while another backup of the machine goes first, or nil.
func turnOfAnother(in *input) *obstacle {
	if in.Ahead == nil {
		return nil
	}
	return waitFor(backupstate.OtherBackupFirst(in.Ahead.Name))
}

// lockedByAnother returns an obstacle while another backup has the lock on the instance, or nil.
func lockedByAnother(in *input) *obstacle {
	if lock := in.instanceLock(); lock != nil && !in.ownsLock() {
		return waitFor(backupstate.InstanceStillLocked(in.machineName(), lock.BackupName))
	}
	return nil
}

// findAhead returns the backup that goes directly ahead of b, or nil. The cache says which one it is, and c confirms
// it. Who still waits behind the same one as before does not look at the others.
func (r *reconciler) findAhead(ctx context.Context, c client.Reader, b *backupv1.VirtualMachineBackup, machine string) (*backupv1.VirtualMachineBackup, error) {
	if b.Status.WaitsBehind != "" {
		same, err := reconcile.Find(ctx, c, client.ObjectKey{Namespace: b.Namespace, Name: b.Status.WaitsBehind}, &backupv1.VirtualMachineBackup{})
		if err != nil {
			return nil, err
		}
		if same != nil && goesBefore(same, b) && r.machineOfBackup(ctx, same) == machine {
			return same, nil
		}
	}
	line, err := r.listUnfinishedOfMachine(ctx, b.Namespace, machine)
	if err != nil {
		return nil, err
	}
	for {
		ahead := directlyAhead(b, line)
		if ahead == nil {
			return r.findStarted(ctx, c, b, line)
		}
		now, err := reconcile.Find(ctx, c, client.ObjectKeyFromObject(ahead), &backupv1.VirtualMachineBackup{})
		if err != nil {
			return nil, err
		}
		if now != nil && now.UID == ahead.UID && goesBefore(now, b) {
			return now, nil
		}
		line = slices.DeleteFunc(line, func(o backupv1.VirtualMachineBackup) bool { return o.UID == ahead.UID })
	}
}

// findStarted returns the backup of a line that has left it to run since the cache saw it, or nil. It can only be the
// next one.
func (r *reconciler) findStarted(ctx context.Context, c client.Reader, b *backupv1.VirtualMachineBackup, line []backupv1.VirtualMachineBackup) (*backupv1.VirtualMachineBackup, error) {
	next := firstInLine(slices.DeleteFunc(line, func(o backupv1.VirtualMachineBackup) bool { return o.UID == b.UID }))
	if next == nil {
		return nil, nil
	}
	now, err := reconcile.Find(ctx, c, client.ObjectKeyFromObject(next), &backupv1.VirtualMachineBackup{})
	if err != nil || now == nil || !goesBefore(now, b) {
		return nil, err
	}
	return now, nil
}
