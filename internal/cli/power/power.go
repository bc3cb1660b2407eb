// Package power decides how to ask for the start, stop or restart of a virtual machine: with spec.runStrategy if that
// is enough, or with status.stateChangeRequests if the strategy leaves it to requests, as KubeVirt's virt-api does. It
// is pure.
package power

import (
	"fmt"
	"slices"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// Change is what to write. The zero Change writes nothing: the machine already is, or is becoming, what was asked for.
type Change struct {
	// RunStrategy is the new strategy; if empty, the strategy stays.
	RunStrategy kubevirtv1.RunStrategy
	// Requests replaces the state change requests when SetRequests is true.
	Requests    []kubevirtv1.StateChangeRequest
	SetRequests bool
	// Note says in a few words what happens, such as "starts" or "is already running".
	Note string
}

// NotRunningError says that there is no instance to restart.
type NotRunningError struct{ VM string }

func (e *NotRunningError) Error() string {
	return fmt.Sprintf("virtual machine %s is not running", e.VM)
}

// Start asks for a running instance. vmi is the machine's instance, or nil.
func Start(vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance) Change {
	switch strategy := Strategy(vm); {
	case strategy == kubevirtv1.RunStrategyHalted:
		return Change{RunStrategy: kubevirtv1.RunStrategyAlways, Note: "starts"}
	case strategy == kubevirtv1.RunStrategyAlways && isAlive(vmi):
		return Change{Note: "is already running"}
	case strategy == kubevirtv1.RunStrategyAlways:
		return Change{Note: "is already being started"}
	}
	pending := vm.Status.StateChangeRequests
	switch {
	case slices.ContainsFunc(pending, isStart):
		return Change{Note: "is already being started"}
	case isAlive(vmi) && !slices.ContainsFunc(pending, isStopOf(vmi)):
		return Change{Note: "is already running"}
	}
	requests := append(slices.DeleteFunc(slices.Clone(pending), func(r kubevirtv1.StateChangeRequest) bool { return !isStopOf(vmi)(r) }),
		kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
	return Change{Requests: requests, SetRequests: true, Note: "starts"}
}

// Stop asks for the machine to have no instance.
func Stop(vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance) Change {
	strategy := Strategy(vm)
	if strategy == kubevirtv1.RunStrategyAlways {
		return Change{RunStrategy: kubevirtv1.RunStrategyHalted, Note: "stops"}
	}
	pending := vm.Status.StateChangeRequests
	switch {
	case strategy == kubevirtv1.RunStrategyHalted && isPresent(vmi):
		return Change{Note: "is already being stopped"}
	case strategy == kubevirtv1.RunStrategyHalted:
		return Change{Note: "is already stopped"}
	case isAlive(vmi) && slices.ContainsFunc(pending, isStopOf(vmi)) && !slices.ContainsFunc(pending, isStart):
		return Change{Note: "is already being stopped"}
	case isAlive(vmi):
		return Change{Requests: []kubevirtv1.StateChangeRequest{newStopRequest(vmi)}, SetRequests: true, Note: "stops"}
	case slices.ContainsFunc(pending, isStart):
		// Take back a start that nobody has acted on yet.
		return Change{SetRequests: true, Note: "stops"}
	case isPresent(vmi):
		return Change{Note: "is already being stopped"}
	}
	return Change{Note: "is already stopped"}
}

// Restart asks for a new instance in place of the present one.
func Restart(vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance) (Change, error) {
	if !isAlive(vmi) || Strategy(vm) == kubevirtv1.RunStrategyHalted {
		return Change{}, &NotRunningError{VM: vm.Name}
	}
	return Change{
		Requests:    []kubevirtv1.StateChangeRequest{newStopRequest(vmi), {Action: kubevirtv1.StartRequest}},
		SetRequests: true,
		Note:        "restarts",
	}, nil
}

// Strategy returns the machine's run strategy, with the API's default.
func Strategy(vm *kubevirtv1.VirtualMachine) kubevirtv1.RunStrategy {
	return vm.Spec.Strategy()
}

// isPresent reports whether the instance still holds resources.
func isPresent(vmi *kubevirtv1.VirtualMachineInstance) bool {
	return vmi != nil && !vmi.Status.Phase.Final()
}

// isAlive reports whether the instance runs, or will, and nobody has ended it.
func isAlive(vmi *kubevirtv1.VirtualMachineInstance) bool {
	return isPresent(vmi) && vmi.DeletionTimestamp.IsZero()
}

func isStart(r kubevirtv1.StateChangeRequest) bool { return r.Action == kubevirtv1.StartRequest }

// isStopOf returns a function that reports whether a request ends this instance.
func isStopOf(vmi *kubevirtv1.VirtualMachineInstance) func(kubevirtv1.StateChangeRequest) bool {
	return func(r kubevirtv1.StateChangeRequest) bool {
		return vmi != nil && r.Action == kubevirtv1.StopRequest && r.UID != nil && *r.UID == vmi.UID
	}
}

func newStopRequest(vmi *kubevirtv1.VirtualMachineInstance) kubevirtv1.StateChangeRequest {
	uid := vmi.UID
	return kubevirtv1.StateChangeRequest{Action: kubevirtv1.StopRequest, UID: &uid}
}
