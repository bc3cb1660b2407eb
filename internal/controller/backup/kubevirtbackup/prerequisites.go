package kubevirtbackup

import (
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/tracking"
)

// obstacle is what keeps a backup from running, for now or, if fatal, for good.
type obstacle struct {
	backupstate.State
	fatal bool
	// poll says that nothing wakes the backup when the obstacle goes away.
	poll bool
}

func waitFor(s backupstate.State) *obstacle { return &obstacle{State: s} }

func pollFor(s backupstate.State) *obstacle { return &obstacle{State: s, poll: true} }

func failWith(s backupstate.State) *obstacle { return &obstacle{State: s, fatal: true} }

// missingPrerequisite returns the first thing that the backup needs and does not have, or nil. What can never be put
// right comes first, so that the user does not fix everything else in vain.
func missingPrerequisite(in *input) *obstacle {
	for _, check := range []func(*input) *obstacle{
		missingTime, unusableClaim, missingGate, missingTracker, missingMachine, missingGuest, missingTracking, missingClaim, missingToken, missingTunnel,
	} {
		if o := check(in); o != nil {
			return o
		}
	}
	return nil
}

func unusableClaim(in *input) *obstacle {
	if in.Claim != nil && tracking.IsBlock(in.Claim.Spec.VolumeMode) {
		return failWith(backupstate.ClaimIsBlock(in.Claim.Name))
	}
	return claimInUse(in)
}

// missingGate catches what admission could not, for example in the first seconds of an API server or without a
// KubeVirt object, and gates that were turned off later.
func missingGate(in *input) *obstacle {
	gates := []string{kubevirtv1.IncrementalBackup, kubevirtv1.UtilityVolumes}
	if in.isPull() {
		gates = append(gates, kubevirtv1.VMExport)
	}
	for _, gate := range gates {
		if !tracking.GateEnabled(in.Configuration, gate) {
			return waitFor(backupstate.GateDisabled(gate, in.ConfigurationName.String()))
		}
	}
	return nil
}

func missingTracker(in *input) *obstacle {
	name := in.Backup.Spec.TrackerName()
	switch {
	case name == "":
		return nil
	case in.Tracker == nil:
		return waitFor(backupstate.TrackerNotFound(name))
	case in.Tracker.DeletionTimestamp != nil:
		return waitFor(backupstate.TrackerDeleting(name))
	}
	return nil
}

func missingMachine(in *input) *obstacle {
	name := in.machineName()
	switch {
	case in.VM == nil:
		return waitFor(backupstate.MachineNotFound(name))
	case in.VM.DeletionTimestamp != nil:
		return waitFor(backupstate.MachineDeleting(name))
	}
	return nil
}

func missingGuest(in *input) *obstacle {
	name := in.machineName()
	switch {
	case in.Instance == nil:
		return waitFor(backupstate.GuestNotStarted(name))
	case in.Instance.DeletionTimestamp != nil:
		return waitFor(backupstate.GuestStopping(name))
	case in.Instance.Status.Phase.Final():
		return waitFor(backupstate.GuestEnded(name, in.Instance.Status.Phase))
	case in.Instance.Status.Phase != kubevirtv1.PhaseRunning:
		return waitFor(backupstate.GuestComing(name, in.Instance.Status.Phase))
	case in.Moves:
		return pollFor(backupstate.GuestMoves(name, in.Migration))
	}
	return nil
}

func missingTracking(in *input) *obstacle {
	var state kubevirtv1.ChangedBlockTrackingState
	if s := in.Instance.Status.ChangedBlockTracking; s != nil {
		state = s.State
	}
	name := in.machineName()
	switch state {
	case kubevirtv1.ChangedBlockTrackingEnabled:
	case kubevirtv1.ChangedBlockTrackingInitializing:
		return waitFor(backupstate.TrackingInitializing(name))
	case kubevirtv1.ChangedBlockTrackingPendingRestart:
		return waitFor(backupstate.TrackingNeedsRestart(name))
	default:
		return waitFor(backupstate.TrackingNotSelected(name))
	}
	if len(tracking.EligibleVolumes(&in.Instance.Spec)) == 0 {
		return waitFor(backupstate.NoEligibleDisk(name))
	}
	return nil
}

func missingClaim(in *input) *obstacle {
	name := in.Backup.Spec.PVCName
	switch {
	case in.Claim == nil:
		return waitFor(backupstate.ClaimNotFound(name))
	case in.Claim.DeletionTimestamp != nil:
		return waitFor(backupstate.ClaimDeleting(name))
	}
	return nil
}
