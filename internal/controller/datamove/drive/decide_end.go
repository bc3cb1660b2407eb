package drive

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// decideEnding is for an object whose end is decided: everything that was made goes, and then the phase is written. What cannot be
// disposed of delays that for operationTimeout.
func decideEnding(in Input) Decision {
	o := &in.Object
	ending := o.Memory.Ending
	if r := reportOf(in); isStored(in, r) && o.Memory.Finishing == nil {
		return completeAfterAll(in, r)
	}
	deadline := ending.Since.Add(o.OperationTimeout)
	d, left, done := clear(in)
	if d.Do != Wait {
		return d
	}
	change := o.unchanged()
	change.Phase, change.Completed = ending.Phase, in.Now
	if done {
		change.Message = appendSentence(ending.text(), left)
		change.Memory.Disposed = true
		change.Finalizer = o.Finalizer && in.keepsFinalizer(ending.Phase)
		return Decision{Do: Write, Change: change}
	}
	if in.Now.Before(deadline) {
		d := waitFor(in, left, deadline)
		d.Change.Message = ending.progressively() + d.Change.Message
		return d
	}
	change.Message = appendSentence(ending.text(), "not disposed of, and tried again: "+left)
	return Decision{Do: Write, Change: change, Again: lookAgain}
}

// isStored says that a report is of an upload whose restore point is published.
func isStored(in Input, r *datamove.Report) bool {
	return in.Object.Kind == datamove.Upload && r != nil && r.Outcome == datamove.Succeeded &&
		isPointOf(&in.Object, r.SnapshotID)
}

// completeAfterAll is for an upload that was to end otherwise, and had published its restore point by then: who owns it
// must have its ID.
func completeAfterAll(in Input, r *datamove.Report) Decision {
	change := in.Object.unchanged()
	at := metav1.NewTime(in.Now).Rfc3339Copy()
	change.Memory.Ending = &ending{Phase: velerov2.PhaseCompleted, Since: at}
	change.Memory.Finishing = &at
	change.Result = r
	change.Message = "the data was stored before that could be stopped; disposing of what that took"
	return Decision{Do: Write, Change: change}
}

// text is what the object says at its end.
func (e *ending) text() string {
	if e.Phase == velerov2.PhaseCanceled {
		return "canceled: " + e.Message
	}
	return e.Message
}

// progressively is what the object says before its end, in front of what it waits for.
func (e *ending) progressively() string {
	switch e.Phase {
	case velerov2.PhaseCanceled:
		return "canceling: " + e.Message + "; "
	case velerov2.PhaseFailed:
		return "failed: " + e.Message + "; "
	default:
		return ""
	}
}

// keepsFinalizer says that an object in this terminal phase keeps its finalizer although nothing is left of what was
// made: that of a DataUpload with a restore point, for when it is deleted. A mover that began and never said that it
// failed may have published the restore point, even if the DataUpload ended otherwise: its node was cut off, or the
// cancel came at that very moment.
func (in *Input) keepsFinalizer(phase velerov2.Phase) bool {
	o := &in.Object
	if o.Kind != datamove.Upload {
		return false
	}
	r := reportOf(*in)
	mayHavePoint := !o.Started.IsZero() && (r == nil || r.Outcome != datamove.Failed)
	return phase == velerov2.PhaseCompleted || in.KeepsPoint && mayHavePoint
}

// clear removes everything that was made, one step after the other. With Wait, it says what is left, or that nothing is. done comes
// with what was left to somebody else.
func clear(in Input) (d Decision, left string, done bool) {
	switch {
	case in.Pod != nil && in.PodNode.Gone && in.Pod.Node != "":
		return Decision{Do: KillPod}, "", false
	case in.Pod != nil && !in.Pod.Deleting:
		return Decision{Do: DeletePod}, "", false
	case in.Pod != nil:
		return Decision{}, "pod " + in.Pod.Name + " to be gone", false
	case in.Disposed == nil:
		return Decision{Do: Dispose}, "", false
	case in.Disposed.Err != nil:
		return Decision{}, "what was made to be gone: " + in.Disposed.Err.Error(), false
	case !in.Disposed.Done:
		return Decision{}, in.Disposed.Waiting, false
	default:
		return Decision{}, in.Disposed.Left, true
	}
}

// endedInterval is how often an object is looked at that has ended and of which something is left.
const endedInterval = 30 * time.Second

// decideEnded is for an object that has ended. Its phase and its time of completion stay.
func decideEnded(in Input) Decision {
	o := &in.Object
	if !o.Finalizer {
		return Decision{}
	}
	change := o.unchanged()
	if !o.Memory.Disposed {
		d, left, done := clear(in)
		switch {
		case d.Do != Wait:
			return d
		case !done:
			return Decision{Again: endedInterval}
		}
		change.Memory.Disposed = true
		if o.Memory.Ending != nil {
			change.Message = appendSentence(o.Memory.Ending.text(), left)
		}
		change.Finalizer = in.keepsFinalizer(o.Phase)
		return Decision{Do: Write, Change: change}
	}
	if o.Deleted && in.keepsFinalizer(o.Phase) && in.KeepsPoint {
		switch {
		case in.Deleted == nil:
			return Decision{Do: DeletePoint}
		case in.Deleted.Err != nil || !in.Deleted.Done:
			change.Message = because("waiting for the restore point to be deleted",
				cmp.Or(in.Deleted.Waiting, textOf(in.Deleted.Err)))
			return Decision{Do: Write, Change: change, Again: endedInterval}
		}
	}
	if in.keepsFinalizer(o.Phase) && !o.Deleted {
		return Decision{}
	}
	change.Finalizer = false
	return Decision{Do: Write, Change: change}
}

func appendSentence(message, more string) string {
	switch {
	case more == "":
		return message
	case message == "":
		return more
	default:
		return message + "; " + more
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
