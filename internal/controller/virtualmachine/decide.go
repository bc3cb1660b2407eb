package virtualmachine

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// Input is everything that the decision depends on.
type Input struct {
	// Now is the time that backoff is measured against.
	Now time.Time
	// VM is the machine. It is not modified.
	VM *kubevirtv1.VirtualMachine
	// Instance is the machine's own instance, or nil.
	Instance *kubevirtv1.VirtualMachineInstance
	// Foreign says that an instance of this name exists and belongs to somebody else.
	Foreign bool
	// CreateError is what the API server answered to the last attempt to create the instance. Empty: nothing.
	CreateError string
}

// Decision is what to do. Status is written before the action is taken.
type Decision struct {
	// Status is what the machine's status must be.
	Status kubevirtv1.VirtualMachineStatus
	// RunStrategy is the new value of spec.runStrategy. If empty, it stays as it is.
	RunStrategy kubevirtv1.RunStrategy
	// Create makes the instance; Delete deletes it. At most one is set.
	Create, Delete bool
	// CountedFailure says that this decision counts the instance as a failed start.
	CountedFailure bool
	// Released says that nothing is left to do for a machine that is being deleted.
	Released bool
	// RequeueAfter is when the decision changes by the passage of time alone. 0: never.
	RequeueAfter time.Duration
}

// strategy returns the machine's run strategy. Without one it is Halted.
func strategy(vm *kubevirtv1.VirtualMachine) kubevirtv1.RunStrategy {
	return vm.Spec.Strategy()
}

// Decide says what a machine needs now.
func Decide(in Input) Decision {
	d := Decision{Status: *in.VM.Status.DeepCopy()}
	if in.VM.DeletionTimestamp != nil {
		d.terminate(in)
	} else {
		d.countStart(in)
		d.trimRequests(in)
		d.follow(in)
		d.Status.RunStrategy = strategy(in.VM)
	}
	d.report(in)
	return d
}

// terminate ends the instance of a machine that is being deleted. With --cascade=orphan the instance stays.
func (d *Decision) terminate(in Input) {
	orphan := slices.Contains(in.VM.Finalizers, metav1.FinalizerOrphanDependents)
	d.Delete = in.Instance != nil && in.Instance.DeletionTimestamp == nil && !orphan
	d.Released = in.Instance == nil || orphan
}

// trimRequests removes the fulfilled requests at the head of the queue.
func (d *Decision) trimRequests(in Input) {
	requests := d.Status.StateChangeRequests
	for len(requests) > 0 && fulfilled(requests[0], in.Instance) {
		requests = requests[1:]
	}
	d.Status.StateChangeRequests = slices.Clip(requests)
}

// fulfilled reports whether the instance that a stop names is gone, or an instance for a start exists. An instance
// that has ended or is being deleted does not fulfil a start; its successor does.
func fulfilled(r kubevirtv1.StateChangeRequest, instance *kubevirtv1.VirtualMachineInstance) bool {
	switch r.Action {
	case kubevirtv1.StopRequest:
		return instance == nil || r.UID == nil || *r.UID != instance.UID
	case kubevirtv1.StartRequest:
		return alive(instance)
	default:
		return true
	}
}

// alive reports whether an instance runs or is on its way to run.
func alive(instance *kubevirtv1.VirtualMachineInstance) bool {
	return instance != nil && instance.DeletionTimestamp == nil && !instance.Status.Phase.Final()
}

// first reports whether the next request has this action.
func (d *Decision) first(action kubevirtv1.StateChangeRequestAction) bool {
	return len(d.Status.StateChangeRequests) > 0 && d.Status.StateChangeRequests[0].Action == action
}

// ask appends a start to the requests, unless they already have one.
func (d *Decision) ask() {
	for _, r := range d.Status.StateChangeRequests {
		if r.Action == kubevirtv1.StartRequest {
			return
		}
	}
	d.Status.StateChangeRequests = append(slices.Clone(d.Status.StateChangeRequests), kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
}

// follow does what the run strategy and the next request say.
func (d *Decision) follow(in Input) {
	s := strategy(in.VM)
	if s == kubevirtv1.RunStrategyRerunOnFailure && in.VM.Status.RunStrategy != s && !alive(in.Instance) {
		// A machine that comes from another strategy, or from none, starts once.
		d.ask()
	}
	if in.Instance != nil {
		d.end(in, s)
		return
	}
	start := d.first(kubevirtv1.StartRequest)
	switch s {
	case kubevirtv1.RunStrategyAlways:
		start = true
	case kubevirtv1.RunStrategyHalted:
		if start {
			// Starting a halted machine means that it is to run from now on.
			d.RunStrategy = kubevirtv1.RunStrategyAlways
		}
		return
	case kubevirtv1.RunStrategyManual, kubevirtv1.RunStrategyRerunOnFailure:
		// These start only on request.
	}
	if start {
		d.start(in)
	}
}

// end deletes an instance that has ended or must no longer run.
func (d *Decision) end(in Input, s kubevirtv1.RunStrategy) {
	if in.Instance.DeletionTimestamp != nil {
		return
	}
	if in.Instance.Status.Phase == kubevirtv1.PhaseFailed && s == kubevirtv1.RunStrategyRerunOnFailure && !d.first(kubevirtv1.StopRequest) {
		d.ask()
	}
	// If trimRequests left a stop at the head, that stop names this very instance.
	d.Delete = s == kubevirtv1.RunStrategyHalted || in.Instance.Status.Phase.Final() || d.first(kubevirtv1.StopRequest)
}

// start creates the instance once the backoff after failed starts is over.
func (d *Decision) start(in Input) {
	if in.Foreign {
		return
	}
	if f := d.Status.StartFailure; f != nil && f.RetryAfterTimestamp != nil {
		if left := f.RetryAfterTimestamp.Sub(in.Now); left > 0 {
			d.RequeueAfter = left
			return
		}
	}
	d.Create = true
}
