package changedblocktracking

import (
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/virtualmachineinstance"
)

// Input is everything that the decision looks at.
type Input struct {
	// Selected says that the selectors want the machine's disks tracked.
	Selected bool
	// GateOff says that feature gate IncrementalBackup is off. Nothing is Selected then.
	GateOff bool
	// VM is the machine's present state. Empty: it never had one.
	VM kubevirtv1.ChangedBlockTrackingState
	// Instance is the machine's own instance, or nil.
	Instance *kubevirtv1.VirtualMachineInstance
}

// Decision is what has to be.
type Decision struct {
	// VM and Instance are the states to show. Empty: none yet, or no instance to show it on.
	VM, Instance kubevirtv1.ChangedBlockTrackingState
	// NeedClaim says that the state claim has to exist, DropClaim that it has to go. Neither: leave it as it is.
	NeedClaim, DropClaim bool
}

// Decide is the table of docs/architecture.md, "Changed block tracking".
func Decide(in Input) Decision {
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
		return Decision{VM: kubevirtv1.ChangedBlockTrackingPendingRestart, Instance: kubevirtv1.ChangedBlockTrackingPendingRestart}
	}
	d := Decision{DropClaim: true}
	if in.VM != "" || state(in.Instance) != "" {
		d.VM, d.Instance = kubevirtv1.ChangedBlockTrackingDisabled, kubevirtv1.ChangedBlockTrackingDisabled
	}
	return d
}

// withGateOff: what a machine has stays as long as turning the gate on again can use it, and a running guest is left alone. Once the
// guest has started without its overlays they describe a disk that has been written since, and go.
func withGateOff(in Input) Decision {
	d := Decision{VM: kubevirtv1.ChangedBlockTrackingFGDisabled}
	if in.Instance == nil {
		return d
	}
	d.Instance = state(in.Instance)
	if !in.Instance.Status.Phase.Final() {
		tracked := virtualmachineinstance.Tracked(in.Instance)
		d.NeedClaim = tracked && in.Instance.DeletionTimestamp == nil
		d.DropClaim = !tracked
	}
	return d
}

// withoutGuest: what a selected machine had stays for its next start; a machine that is not selected loses it. An instance
// that ended may still hold the claim, so it is dropped only when the instance is gone.
func withoutGuest(in Input) Decision {
	d := Decision{VM: in.VM}
	if in.Instance != nil {
		d.Instance = state(in.Instance)
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

// trackedGuest: the guest's overlays stay as long as it runs, whatever the selectors say meanwhile.
func trackedGuest(in Input) Decision {
	d := Decision{NeedClaim: in.Instance.DeletionTimestamp == nil}
	switch {
	case !in.Selected:
		d.Instance = kubevirtv1.ChangedBlockTrackingPendingRestart
	case state(in.Instance) == kubevirtv1.ChangedBlockTrackingEnabled:
		d.Instance = kubevirtv1.ChangedBlockTrackingEnabled
	default:
		// Also after a PendingRestart that was taken back: the handler says Enabled again.
		d.Instance = kubevirtv1.ChangedBlockTrackingInitializing
	}
	d.VM = d.Instance
	return d
}

func state(instance *kubevirtv1.VirtualMachineInstance) kubevirtv1.ChangedBlockTrackingState {
	if instance.Status.ChangedBlockTracking == nil {
		return ""
	}
	return instance.Status.ChangedBlockTracking.State
}
