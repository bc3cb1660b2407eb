package virtualmachine

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// input is everything that the decision depends on.
type input struct {
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

// decision is what to do. Status is written before the action is taken.
type decision struct {
	// Status is what the machine's status must be.
	Status kubevirtv1.VirtualMachineStatus
	// RunStrategy is the new value of spec.runStrategy. If empty, it stays as it is.
	RunStrategy kubevirtv1.RunStrategy
	// Create makes the instance; Delete deletes it. At most one is set.
	Create, Delete bool
	// CountedFailure says that this decision counts the instance as a failed start.
	CountedFailure bool
	// FailedStart is the condition of an instance that failed before its guest ran, counted or not, or nil.
	FailedStart *kubevirtv1.Condition
	// Released says that nothing is left to do for a machine that is being deleted.
	Released bool
	// RequeueAfter is when the decision changes by the passage of time alone. 0: never.
	RequeueAfter time.Duration
}

// runStrategyOf returns the machine's run strategy. Without one it is Halted.
func runStrategyOf(vm *kubevirtv1.VirtualMachine) kubevirtv1.RunStrategy {
	return vm.Spec.Strategy()
}

// decide says what a machine needs now.
func decide(in input) decision {
	d := decision{Status: *in.VM.Status.DeepCopy()}
	if in.VM.DeletionTimestamp != nil {
		d.deleteWithMachine(in)
	} else {
		d.countStart(in)
		d.trimRequests(in)
		d.followStrategy(in)
		d.Status.RunStrategy = runStrategyOf(in.VM)
	}
	if failedToStart(in.Instance) {
		failed := whyStartFailed(in.Instance)
		d.FailedStart = &failed
	}
	d.mirrorInstance(in)
	return d
}

// deleteWithMachine ends the instance of a machine that is being deleted. With --cascade=orphan the instance stays.
func (d *decision) deleteWithMachine(in input) {
	orphan := slices.Contains(in.VM.Finalizers, metav1.FinalizerOrphanDependents)
	d.Delete = in.Instance != nil && in.Instance.DeletionTimestamp == nil && !orphan
	d.Released = in.Instance == nil || orphan
}

// trimRequests removes the fulfilled requests at the head of the queue.
func (d *decision) trimRequests(in input) {
	requests := d.Status.StateChangeRequests
	for len(requests) > 0 && isFulfilled(requests[0], in.Instance) {
		requests = requests[1:]
	}
	d.Status.StateChangeRequests = slices.Clip(requests)
}

// isFulfilled reports whether the instance that a stop names is gone, or an instance for a start exists. An instance
// that has ended or is being deleted does not fulfil a start; its successor does.
func isFulfilled(r kubevirtv1.StateChangeRequest, instance *kubevirtv1.VirtualMachineInstance) bool {
	switch r.Action {
	case kubevirtv1.StopRequest:
		return instance == nil || r.UID == nil || *r.UID != instance.UID
	case kubevirtv1.StartRequest:
		return isAlive(instance)
	default:
		return true
	}
}

// isAlive reports whether an instance runs or is on its way to run.
func isAlive(instance *kubevirtv1.VirtualMachineInstance) bool {
	return instance != nil && instance.DeletionTimestamp == nil && !instance.Status.Phase.Final()
}

// nextRequestIs reports whether the next request has this action.
func (d *decision) nextRequestIs(action kubevirtv1.StateChangeRequestAction) bool {
	return len(d.Status.StateChangeRequests) > 0 && d.Status.StateChangeRequests[0].Action == action
}

// requestStart appends a start to the requests, unless they already have one.
func (d *decision) requestStart() {
	for _, r := range d.Status.StateChangeRequests {
		if r.Action == kubevirtv1.StartRequest {
			return
		}
	}
	d.Status.StateChangeRequests = append(slices.Clone(d.Status.StateChangeRequests), kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest})
}

// followStrategy does what the run strategy and the next request say.
func (d *decision) followStrategy(in input) {
	s := runStrategyOf(in.VM)
	if s == kubevirtv1.RunStrategyRerunOnFailure && in.VM.Status.RunStrategy != s && !isAlive(in.Instance) {
		// A machine that comes from another strategy, or from none, starts once.
		d.requestStart()
	}
	if in.Instance != nil {
		d.endInstance(in, s)
		return
	}
	start := d.nextRequestIs(kubevirtv1.StartRequest)
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
		d.startInstance(in)
	}
}

// endInstance deletes an instance that has ended or must no longer run.
func (d *decision) endInstance(in input, s kubevirtv1.RunStrategy) {
	if in.Instance.DeletionTimestamp != nil {
		return
	}
	if in.Instance.Status.Phase == kubevirtv1.PhaseFailed && s == kubevirtv1.RunStrategyRerunOnFailure && !d.nextRequestIs(kubevirtv1.StopRequest) {
		d.requestStart()
	}
	// If trimRequests left a stop at the head, that stop names this very instance.
	d.Delete = s == kubevirtv1.RunStrategyHalted || in.Instance.Status.Phase.Final() || d.nextRequestIs(kubevirtv1.StopRequest)
}

// startInstance creates the instance once the backoff after failed starts is over.
func (d *decision) startInstance(in input) {
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
