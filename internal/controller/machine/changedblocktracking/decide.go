package changedblocktracking

import (
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
)

// input is everything that the decision depends on.
type input struct {
	// Selected says that the selectors want the machine's disks tracked.
	Selected bool
	// GateOff says that feature gate IncrementalBackup is off. Selected is false then.
	GateOff bool
	// VM is the machine's present state. It is empty if the machine never had one.
	VM kubevirtv1.ChangedBlockTrackingState
	// Instance is the machine's own instance, or nil.
	Instance *kubevirtv1.VirtualMachineInstance
}

// decision is the desired outcome.
type decision struct {
	// VM and Instance are the states to show. One is empty if there is no state yet, or no instance to show it on.
	VM, Instance kubevirtv1.ChangedBlockTrackingState
	// NeedClaim says that the state claim must exist, DropClaim that it must go. If neither is set, the claim stays
	// as it is.
	NeedClaim, DropClaim bool
}

// decide implements the table in docs/architecture.md, "Changed block tracking".
func decide(in input) decision {
	if in.GateOff && in.VM != "" && in.VM != kubevirtv1.ChangedBlockTrackingDisabled {
		return withGateOff(in)
	}
	if in.Instance == nil || in.Instance.Status.Phase.Final() {
		return withoutGuest(in)
	}
	if virtualmachineinstance.Tracked(in.Instance) {
		return trackedGuest(in)
	}
	if in.Selected {
		return decision{VM: kubevirtv1.ChangedBlockTrackingPendingRestart, Instance: kubevirtv1.ChangedBlockTrackingPendingRestart}
	}
	d := decision{DropClaim: true}
	if in.VM != "" || trackingState(in.Instance) != "" {
		d.VM, d.Instance = kubevirtv1.ChangedBlockTrackingDisabled, kubevirtv1.ChangedBlockTrackingDisabled
	}
	return d
}

// withGateOff keeps what a machine has as long as it would still be of use if the gate were turned on again, and
// leaves a running guest alone. Once the guest has started without its overlays, they describe a disk that has been
// written to since, so the claim goes.
func withGateOff(in input) decision {
	d := decision{VM: kubevirtv1.ChangedBlockTrackingFGDisabled}
	if in.Instance == nil {
		return d
	}
	d.Instance = trackingState(in.Instance)
	if !in.Instance.Status.Phase.Final() {
		tracked := virtualmachineinstance.Tracked(in.Instance)
		d.NeedClaim = tracked && in.Instance.DeletionTimestamp == nil
		d.DropClaim = !tracked
	}
	return d
}

// withoutGuest keeps what a selected machine had for its next start. A machine that is not selected loses it. An
// instance that has ended may still hold the claim, so the claim is dropped only once the instance is gone.
func withoutGuest(in input) decision {
	d := decision{VM: in.VM}
	if in.Instance != nil {
		d.Instance = trackingState(in.Instance)
	}
	if in.Selected {
		return d
	}
	if in.VM != "" {
		d.VM = kubevirtv1.ChangedBlockTrackingDisabled
	}
	d.DropClaim = in.Instance == nil
	return d
}

// trackedGuest keeps the guest's overlays as long as it runs, whatever the selectors say in the meantime.
func trackedGuest(in input) decision {
	d := decision{NeedClaim: in.Instance.DeletionTimestamp == nil}
	switch {
	case !in.Selected:
		d.Instance = kubevirtv1.ChangedBlockTrackingPendingRestart
	case trackingState(in.Instance) == kubevirtv1.ChangedBlockTrackingEnabled:
		d.Instance = kubevirtv1.ChangedBlockTrackingEnabled
	default:
		// This includes a PendingRestart that was taken back: the handler then reports Enabled again.
		d.Instance = kubevirtv1.ChangedBlockTrackingInitializing
	}
	d.VM = d.Instance
	return d
}

func trackingState(instance *kubevirtv1.VirtualMachineInstance) kubevirtv1.ChangedBlockTrackingState {
	if instance.Status.ChangedBlockTracking == nil {
		return ""
	}
	return instance.Status.ChangedBlockTracking.State
}
