package kubevirtbackup

import (
	"fmt"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/tracking"
)

// obstacle is what keeps a backup from running, for now or, if fatal, for good.
type obstacle struct {
	reason, message string
	fatal           bool
}

func waitFor(reason, format string, args ...any) *obstacle {
	return &obstacle{reason: reason, message: fmt.Sprintf(format, args...)}
}

func never(reason, format string, args ...any) *obstacle {
	return &obstacle{reason: reason, message: fmt.Sprintf(format, args...), fatal: true}
}

// prerequisites returns the first thing that the backup needs and does not have, or nil. What can never be put
// right comes first, so that the user does not fix everything else in vain.
func prerequisites(in *Input) *obstacle {
	for _, check := range []func(*Input) *obstacle{
		unusableClaim, missingGate, missingTracker, missingMachine, missingGuest, missingTracking, missingClaim,
	} {
		if o := check(in); o != nil {
			return o
		}
	}
	return nil
}

func unusableClaim(in *Input) *obstacle {
	if in.Claim != nil && tracking.IsBlock(in.Claim.Spec.VolumeMode) {
		return never(backupv1.ReasonPVCIsBlock,
			"The target PersistentVolumeClaim %s has volumeMode Block; create a backup with a claim whose volumeMode is Filesystem.", in.Claim.Name)
	}
	return claimInUse(in)
}

// missingGate catches what admission could not, for example in the first seconds of an API server or without a
// KubeVirt object, and gates that were turned off later.
func missingGate(in *Input) *obstacle {
	for _, gate := range []string{kubevirtv1.IncrementalBackup, kubevirtv1.UtilityVolumes} {
		if !tracking.GateEnabled(in.Configuration, gate) {
			return waitFor(backupv1.ReasonGateDisabled,
				"Waiting for feature gate %s, which is off: add it to spec.configuration.developerConfiguration.featureGates of KubeVirt %s.", gate, in.ConfigurationName)
		}
	}
	return nil
}

func missingTracker(in *Input) *obstacle {
	name := in.Backup.Spec.BackupTracker
	switch {
	case name == "":
		return nil
	case in.Tracker == nil:
		return waitFor(backupv1.ReasonTrackerNotFound, "Waiting for VirtualMachineBackupTracker %s, which does not exist: create it.", name)
	case in.Tracker.DeletionTimestamp != nil:
		return waitFor(backupv1.ReasonTrackerNotFound, "Waiting for VirtualMachineBackupTracker %s, which is being deleted: create it again when it is gone.", name)
	}
	return nil
}

func missingMachine(in *Input) *obstacle {
	name := in.machine()
	switch {
	case in.VM == nil:
		return waitFor(backupv1.ReasonVMNotFound, "Waiting for VirtualMachine %s, which does not exist: create it.", name)
	case in.VM.DeletionTimestamp != nil:
		return waitFor(backupv1.ReasonVMNotFound, "Waiting for VirtualMachine %s, which is being deleted: create it again when it is gone.", name)
	}
	return nil
}

func missingGuest(in *Input) *obstacle {
	name := in.machine()
	switch {
	case in.Instance == nil:
		return waitFor(backupv1.ReasonVMNotRunning, "Waiting for VirtualMachine %s to run: start it.", name)
	case in.Instance.DeletionTimestamp != nil:
		return waitFor(backupv1.ReasonVMNotRunning, "Waiting for VirtualMachine %s to run: it is stopping; start it again.", name)
	case in.Instance.Status.Phase.Final():
		return waitFor(backupv1.ReasonVMNotRunning, "Waiting for VirtualMachine %s to run: its guest ended (%s); start it again.", name, in.Instance.Status.Phase)
	case in.Instance.Status.Phase != kubevirtv1.PhaseRunning:
		return waitFor(backupv1.ReasonVMNotRunning, "Waiting for VirtualMachine %s to run: its guest is on the way (%s).", name, phaseName(in.Instance.Status.Phase))
	}
	return nil
}

func phaseName(p kubevirtv1.Phase) kubevirtv1.Phase {
	if p == "" {
		return kubevirtv1.PhasePending
	}
	return p
}

func missingTracking(in *Input) *obstacle {
	var state kubevirtv1.ChangedBlockTrackingState
	if s := in.Instance.Status.ChangedBlockTracking; s != nil {
		state = s.State
	}
	name := in.machine()
	switch state {
	case kubevirtv1.ChangedBlockTrackingEnabled:
	case kubevirtv1.ChangedBlockTrackingInitializing:
		return waitFor(backupv1.ReasonTrackingNotEnabled, "Waiting for changed block tracking of VirtualMachine %s, which is being set up.", name)
	case kubevirtv1.ChangedBlockTrackingPendingRestart:
		return waitFor(backupv1.ReasonTrackingNotEnabled, "Waiting for changed block tracking of VirtualMachine %s: restart the machine.", name)
	default:
		return waitFor(backupv1.ReasonTrackingNotEnabled,
			"Waiting for changed block tracking of VirtualMachine %s: label the machine or its namespace as changedBlockTrackingLabelSelectors of the KubeVirt object says, then restart the machine.", name)
	}
	if len(tracking.EligibleVolumes(&in.Instance.Spec)) == 0 {
		return waitFor(backupv1.ReasonNoEligibleDisk,
			"VirtualMachine %s has no disk that can be backed up: give it a writable disk on a PersistentVolumeClaim that is not shareable, and restart it.", name)
	}
	return nil
}

func missingClaim(in *Input) *obstacle {
	name := in.Backup.Spec.PVCName
	switch {
	case in.Claim == nil:
		return waitFor(backupv1.ReasonPVCNotFound, "Waiting for PersistentVolumeClaim %s, which does not exist: create it with volumeMode Filesystem.", name)
	case in.Claim.DeletionTimestamp != nil:
		return waitFor(backupv1.ReasonPVCNotFound, "Waiting for PersistentVolumeClaim %s, which is being deleted: create it again when it is gone.", name)
	}
	return nil
}

// ahead returns the backup that goes before this one, or nil. A backup that is under way goes first. Among those
// that could start, the oldest does. A backup that waits for something else lets younger ones pass.
func ahead(in *Input) *backupv1.VirtualMachineBackup {
	var first *backupv1.VirtualMachineBackup
	for i := range in.Others {
		o := &in.Others[i]
		if !goesBefore(o, in.Backup) {
			continue
		}
		if first == nil || older(o, first) || !waiting(o) && waiting(first) {
			first = o
		}
	}
	return first
}

func goesBefore(o, b *backupv1.VirtualMachineBackup) bool {
	switch {
	case o.UID == b.UID || o.Status.Phase.Final():
		return false
	case !waiting(o):
		return true
	case o.DeletionTimestamp != nil || !older(o, b):
		return false
	default: // not looked at yet, or ready and in line
		return o.Status.Phase == "" || o.Status.Reason == backupv1.ReasonOtherBackup || o.Status.Reason == backupv1.ReasonNodeBusy
	}
}

func waiting(b *backupv1.VirtualMachineBackup) bool {
	return b.Status.Phase == "" || b.Status.Phase == backupv1.BackupPending
}

func older(a, b *backupv1.VirtualMachineBackup) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// inLine returns an obstacle if another backup of the machine goes first or still has the lock, or nil.
func inLine(in *Input) *obstacle {
	if o := ahead(in); o != nil {
		return waitFor(backupv1.ReasonOtherBackup, "Waiting for VirtualMachineBackup %s of the same virtual machine to end; the oldest goes first.", o.Name)
	}
	if lock := in.lock(); lock != nil && !in.ownsLock() {
		return waitFor(backupv1.ReasonOtherBackup, "Waiting for VirtualMachineInstance %s to be unlocked: VirtualMachineBackup %s had it. Events of the instance say what is in the way.",
			in.machine(), lock.BackupName)
	}
	return nil
}
