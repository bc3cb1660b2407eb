package backupstate

import (
	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// GuestEnd says how the guest of a running backup ended, as far as the instance shows it. It returns false while the
// guest lives. instance is the instance of that name that exists now, or nil. startedOn is the UID of the instance that
// the backup was started on. Someone who sees more than the instance knows better: the controller sees whether the
// machine was deleted with it, and the handler sees what the launcher reports.
func GuestEnd(machine string, startedOn types.UID, instance *kubevirtv1.VirtualMachineInstance) (State, bool) {
	switch {
	case instance == nil:
		return InstanceDeleted(machine), true
	case instance.UID != startedOn:
		return InstanceReplaced(machine), true
	case instance.Status.Phase == kubevirtv1.PhaseSucceeded:
		return GuestShutdown(machine, ""), true
	case instance.Status.Phase == kubevirtv1.PhaseFailed:
		return GuestCrashed(machine, instance.Status.Reason), true
	}
	return State{}, false
}

// MachineDeleted says that the virtual machine and its instance were deleted.
func MachineDeleted(machine string) State {
	return state(backupv1.ReasonVMDeleted, "VirtualMachine %s was deleted while the backup ran.", machine)
}

// InstanceDeleted says that the instance was deleted, as by a stop.
func InstanceDeleted(machine string) State {
	return state(backupv1.ReasonVMDeleted, "VirtualMachineInstance %s was deleted while the backup ran; start the machine and create another backup.", machine)
}

// InstanceReplaced says that the instance was deleted and that the machine has been started again.
func InstanceReplaced(machine string) State {
	return state(backupv1.ReasonVMDeleted, "VirtualMachineInstance %s was replaced by another of the same name while the backup ran; create another backup.", machine)
}

// MachineStopped says that a user stops the machine, and that the stop did not wait for the backup.
func MachineStopped(machine string) State {
	return state(backupv1.ReasonVMDeleted, "VirtualMachine %s is being stopped: create another backup when the machine runs again.", machine)
}

// StopForced says that a user stopped the machine with force.
func StopForced(machine string) State {
	return state(backupv1.ReasonStopForced, "VirtualMachine %s was stopped with force while the backup ran: %s.", machine, tryAgainAfterEnd)
}

// ShutdownFromOutside is how a guest shut down that neither it nor a user of the API shut down.
const ShutdownFromOutside = "from outside, as when its pod is deleted"

// GuestShutdown says that the guest shut down. how adds what is known about it, or is empty.
func GuestShutdown(machine, how string) State {
	return state(backupv1.ReasonGuestShutdown, "The guest of VirtualMachine %s shut down while the backup ran%s: %s.", machine, inParentheses(how), tryAgainAfterEnd)
}

// GuestCrashed says that the guest, its QEMU or its launcher died. how adds what is known about it, or is empty.
func GuestCrashed(machine, how string) State {
	return state(backupv1.ReasonGuestCrashed,
		"The guest of VirtualMachine %s ended unexpectedly while the backup ran%s; its next backup is full, because the record of changes was lost with the guest: create another backup when the machine runs.",
		machine, inParentheses(how))
}

func inParentheses(detail string) string {
	if detail == "" {
		return ""
	}
	return " (" + detail + ")"
}
