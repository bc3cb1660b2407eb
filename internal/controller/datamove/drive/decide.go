package drive

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
)

const (
	// maxDeaths is how often a mover may die, without getting further in between, until its object fails.
	maxDeaths = 5
	// firstRetry is how long after the first death in a pod that is gone the next pod is made. It doubles each time. Within a pod,
	// the kubelet has such delays.
	firstRetry = 10 * time.Second
	// firstLook and lookAgain bound when a wait is looked at again that no watch may tell the end of: after a quarter of the time that it
	// has lasted. Volumes are bound and points in time taken within a second or two, as a rule, and snapshots may take minutes.
	firstLook, lookAgain, lookShare = 250 * time.Millisecond, 5 * time.Second, 4
	// yieldAfter is how long an object holds its place while what it needs before its pod takes long.
	yieldAfter = time.Minute
	// quietQueue is how long an object may wait for a free place until it says so.
	quietQueue = 10 * time.Second
	// queueInterval is how often it is looked whether an object still waits for a place, and not for a node.
	queueInterval = 5 * time.Minute
)

// Action is what the reconciler does next.
type Action string

const (
	// Wait: nothing, until Decision.Again or an event.
	Wait Action = ""
	// Write: Decision.Change.
	Write Action = "Write"
	// Place: give the object a place on another node.
	Place Action = "Place"
	// MayYield: ask whether the object may give its place back while what it needs takes long.
	MayYield Action = "MayYield"
	// Expose, Finish, Dispose and DeletePoint are the exposer's and the deleter's. Their answers go into the next input.
	Expose      Action = "Expose"
	Finish      Action = "Finish"
	Dispose     Action = "Dispose"
	DeletePoint Action = "DeletePoint"
	// MakeRepository, MakePod, DeletePod, KillPod create and delete what an object needs. KillPod is for a pod whose node is gone.
	MakeRepository Action = "MakeRepository"
	MakePod        Action = "MakePod"
	DeletePod      Action = "DeletePod"
	KillPod        Action = "KillPod"
)

// Input is everything that a decision depends on.
type Input struct {
	Now    time.Time
	Object Object
	// Served: the settings say that Varve serves the object. Unserved is why it can never be served, although Varve should; or "".
	Served   bool
	Unserved string
	// PrepareTimeout is how long it may take until the pod runs.
	PrepareTimeout time.Duration
	// DriverNode is the node whose place the object has.
	DriverNode NodeState
	// Takers is how many nodes take objects at all, by the settings and by what is known of the nodes.
	Takers int
	// Location and Repository are what the object needs, Pod is its mover pod, or nil, and PodNode the node of that; if the pod that the
	// object had is not there, the node that it had.
	Location   LocationState
	Repository RepositoryState
	Pod        *PodState
	PodNode    NodeState
	// KeepsPoint: a deleter deletes the restore points of DataUploads.
	KeepsPoint bool
	// Placed, Exposed, Finished, Disposed and Deleted are the answers to actions of this pass; nil: not asked. Placed
	// is the node that has a place for the object, or "".
	Placed                      *string
	MayYield                    *bool
	Exposed                     *ExposeAnswer
	Finished, Disposed, Deleted *ProgressAnswer
	// PodErr is why the pod was not made in this pass.
	PodErr error
}

// ExposeAnswer and ProgressAnswer are what an exposer says.
type (
	ExposeAnswer struct {
		Exposure
		Err error
	}
	ProgressAnswer struct {
		Progress
		Err error
	}
)

// LocationState is what is known of a BackupStorageLocation.
type LocationState struct{ Found, ReadOnly bool }

// RepositoryState is what is known of a BackupRepository.
type RepositoryState struct {
	Name         string
	Found, Ready bool
	// NoStorage: it does not say what a pod mounts.
	NoStorage bool
	Message   string
	// Err is why it could not be made.
	Err error
}

// PodState is what is known of a mover pod.
type PodState struct {
	Name, Node string
	// Pinned is the node whose place it was made for, if it may run on no other one; "": it goes to where its volume
	// or its storage is.
	Pinned string
	UID    types.UID
	// Deleting: it has a deletionTimestamp. Running: the mover runs. Ended: it will never run again.
	Deleting, Running, Ended bool
	// Deaths is how often the mover has died in it, and LastWords what it said the last time.
	Deaths    int
	LastWords string
	// Trouble is why it does not run, as far as is known.
	Trouble string
}

// Decision is what to do next.
type Decision struct {
	Do     Action
	Change Change
	// Again is when to look again at the latest; 0: when something changes.
	Again time.Duration
}

// decide says what is to be done next.
func decide(in Input) Decision {
	o := &in.Object
	switch {
	case !in.Served && !o.Finalizer:
		return Decision{} // another data mover's
	case o.Phase == velerov2.PhaseNew && o.Driver == "":
		return decideNew(in)
	case o.Phase.Ended():
		return decideEnded(in)
	case o.Memory.Ending != nil:
		return decideEnding(in)
	case o.Phase == velerov2.PhaseCanceling || (o.Cancel || o.Deleted) && !isPublished(in):
		return end(in, velerov2.PhaseCanceled, cancelReason(o))
	}
	d := decideTaken(in)
	d.Again = in.lookAtNodes(d.Again)
	return d
}

// decideTaken is for an object that has a place, and whose end is not decided.
func decideTaken(in Input) Decision {
	o := &in.Object
	in.notePodDeaths()
	if d, lost := decidePodNode(in); lost {
		return d
	}
	if d, moves := decidePlace(in); moves {
		return d
	}
	switch o.Phase {
	case velerov2.PhaseAccepted:
		return decideAccepted(in)
	case velerov2.PhasePrepared:
		return decidePrepared(in)
	case velerov2.PhaseInProgress:
		return decideInProgress(in)
	default: // somebody's own words, such as New with a driver
		return fail(in, ReasonUnexpectedPhase, fmt.Sprintf("the phase %s is none that a %s of %s is in", o.Phase, o.Kind, o.Driver))
	}
}

// lookAtNodes returns when to look at an object again, at the latest when a node that it needs counts as lost: no event
// tells.
func (in *Input) lookAtNodes(again time.Duration) time.Duration {
	for _, n := range []NodeState{in.DriverNode, in.PodNode} {
		if n.Name == "" {
			continue
		}
		if wait, ever := n.lostIn(in.Now); ever && wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	return again
}

// isPublished says that an upload has made its restore point. It is too late to cancel it: the restore point of one that is completed is
// deleted with it, and that of one that is not would stay.
func isPublished(in Input) bool {
	r := reportOf(in)
	return in.Object.Kind == datamove.Upload && in.Object.Phase == velerov2.PhaseInProgress && r != nil && r.Outcome == datamove.Succeeded
}

func cancelReason(o *Object) string {
	if o.Deleted {
		return fmt.Sprintf("the %s was deleted", o.Kind)
	}
	return "spec.cancel was set"
}

// decideNew is for objects that nobody has taken. The Taker takes them.
func decideNew(in Input) Decision {
	o := &in.Object
	change := o.unchanged()
	switch {
	case in.Unserved != "":
		change.Phase, change.Message, change.Completed, change.Finalizer = velerov2.PhaseFailed, in.Unserved, in.Now, false
	case o.Cancel || o.Deleted:
		// What it names is disposed of, too: whoever made the snapshot waits for nobody.
		change.Phase = velerov2.PhaseCanceling
		change.Finalizer = o.Finalizer || !o.Deleted
		change.Memory, change.Begins = memory{Ending: &ending{Phase: velerov2.PhaseCanceled, Message: cancelReason(o), Since: metav1.NewTime(in.Now).Rfc3339Copy()}}, true
		change.Message = "canceling: " + cancelReason(o)
	case !o.Finalizer && o.Mover == datamove.Mover:
		change.Finalizer = true // other movers' waiting objects may be taken by the mover that they name
	default:
		says := o.Created.Add(quietQueue)
		if in.Now.Before(says) {
			return Decision{Again: says.Sub(in.Now)}
		}
		return sayWhyItWaits(in)
	}
	return Decision{Do: Write, Change: change}
}

// sayWhyItWaits is for an object that nobody has taken for a while. The reason may be another one later.
func sayWhyItWaits(in Input) Decision {
	change := in.Object.unchanged()
	change.Message = waitInQueue(in)
	again := takeInterval
	if change.Message == noPlace {
		again = queueInterval // the Taker takes it, and nothing else changes
	}
	return Decision{Do: Write, Change: change, Again: again}
}

// waitInQueue says what an object waits for that nobody has taken. That has no deadline: how long all before it take is not the object's fault,
// and who wants to give up sets spec.cancel, as Velero does. It names no number that changes, so that it is written once.
func waitInQueue(in Input) string {
	const by = " (%s in the ConfigMap " + settings.ConfigMap + ")"
	switch {
	case !in.Served:
		return fmt.Sprintf("waiting to be served again, as it was"+by, "namespaces and builtIn")
	case in.Takers == 0:
		return fmt.Sprintf("waiting for a node that takes data movements: none is ready and schedulable that may take any"+by, "concurrency")
	default:
		return noPlace
	}
}

// noPlace is what an object says that nothing but a place is missing for.
const noPlace = "waiting for a place on a node that reaches its volume (concurrency in the ConfigMap " +
	settings.ConfigMap + " says how many a node has, which may be none)"

// decidePlace is for an object whose node is lost or closed before its pod got there: another node takes it.
func decidePlace(in Input) (Decision, bool) {
	if !in.DriverNode.isLost(in.Now) && !in.DriverNode.Closed || reportOf(in) != nil ||
		in.Object.Memory.Yielded != nil ||
		in.Pod != nil && (in.Pod.Node != "" || in.Pod.Pinned == "") || in.Pod == nil && in.PodNode.Name != "" {
		return Decision{}, false
	}
	switch {
	case in.Placed == nil:
		return Decision{Do: Place}, true
	case *in.Placed == "":
		return Decision{}, false // it waits for its node, with a deadline
	}
	change := in.Object.unchanged()
	change.Driver = *in.Placed
	return Decision{Do: Write, Change: change}, true
}

// end begins the end of an object. Its phase is written when nothing is left.
func end(in Input, phase velerov2.Phase, message string) Decision {
	change := in.Object.unchanged()
	change.Memory.Ending = &ending{Phase: phase, Message: message, Since: metav1.NewTime(in.Now).Rfc3339Copy()}
	switch phase {
	case velerov2.PhaseCanceled:
		change.Phase, change.Message = velerov2.PhaseCanceling, "canceling: "+message
	case velerov2.PhaseFailed:
		change.Message = "failed: " + message
	default:
	}
	return Decision{Do: Write, Change: change}
}

// fail begins the end of an object that fails.
func fail(in Input, reason FailureReason, message string) Decision {
	d := end(in, velerov2.PhaseFailed, message)
	d.Change.Memory.Ending.Reason = reason
	return d
}

// decidePodNode is for an object whose pod is on a node that is lost. A pod that has reported is not needed any more.
func decidePodNode(in Input) (Decision, bool) {
	o := &in.Object
	if in.PodNode.Name == "" || reportOf(in) != nil {
		return Decision{}, false
	}
	if in.PodNode.Gone {
		return fail(in, ReasonNodeLost, fmt.Sprintf("node %s, on which the mover pod ran, is gone: try again", in.PodNode.Name)), true
	}
	if !in.PodNode.isLost(in.Now) {
		return Decision{}, false
	}
	deadline := in.PodNode.NotReadySince.Add(lostAfter + o.OperationTimeout)
	if !in.Now.Before(deadline) {
		return fail(in, ReasonNodeLost, fmt.Sprintf("node %s, on which the mover pod runs, has not been ready since %s: try again",
			in.PodNode.Name, in.PodNode.NotReadySince.UTC().Format(time.RFC3339))), true
	}
	return waitFor(in, fmt.Sprintf("node %s, on which the mover pod runs, to be ready again", in.PodNode.Name), deadline), true
}

// waitFor says what an object waits for. It looks again at the deadline, and every now and then before it.
func waitFor(in Input, what string, deadline time.Time) Decision {
	change := in.Object.unchanged()
	change.Message = waitMessage(what, deadline)
	look := min(max(in.Now.Sub(in.Object.stepBegan())/lookShare, firstLook), lookAgain)
	return Decision{Do: Write, Change: change, Again: max(time.Millisecond, min(deadline.Sub(in.Now), look))}
}

func waitMessage(what string, deadline time.Time) string {
	return fmt.Sprintf("waiting for %s, until %s", what, deadline.UTC().Format(time.TimeOnly))
}

// reportOf returns the report of the object's pod, or nil. Another pod's counts for nothing.
func reportOf(in Input) *datamove.Report {
	r := in.Object.Report
	if r == nil || r.Pod == "" || r.Pod == in.Object.Memory.Lost {
		return nil
	}
	if r.Pod == in.Object.Memory.Pod || in.Pod != nil && r.Pod == in.Pod.UID {
		return r
	}
	return nil
}
