package drive

import "slices"

// FailureReason says in one word why an object failed. The metrics count failures by it; the words for people are in the message.
type FailureReason string

const (
	// ReasonUnserved: Varve cannot serve such an object.
	ReasonUnserved FailureReason = "Unserved"
	// ReasonReadOnlyLocation: an upload is to go to a location that is read-only.
	ReasonReadOnlyLocation FailureReason = "ReadOnlyLocation"
	// ReasonRefused: the volume cannot be read or made as the object asks.
	ReasonRefused FailureReason = "Refused"
	// ReasonTimedOut: something that the object waited for did not come in time.
	ReasonTimedOut FailureReason = "TimedOut"
	// ReasonMoverFailed: the mover reported that it failed.
	ReasonMoverFailed FailureReason = "MoverFailed"
	// ReasonMoverDied: the mover died too often without a report.
	ReasonMoverDied FailureReason = "MoverDied"
	// ReasonNodeLost: the node of the mover pod is gone or has not been ready for too long.
	ReasonNodeLost FailureReason = "NodeLost"
	// ReasonUnexpectedPhase: somebody else has written a phase that the object cannot be in.
	ReasonUnexpectedPhase FailureReason = "UnexpectedPhase"
	// ReasonUnknown: none of these. An earlier version left none.
	ReasonUnknown FailureReason = "Unknown"
)

var failureReasons = []FailureReason{
	ReasonUnserved, ReasonReadOnlyLocation, ReasonRefused, ReasonTimedOut, ReasonMoverFailed, ReasonMoverDied, ReasonNodeLost, ReasonUnexpectedPhase,
}

// failureReason returns the reason of a change to PhaseFailed. It is one of a few, whatever the object's annotation has.
func (c *Change) failureReason() FailureReason {
	switch e := c.Memory.Ending; {
	case e == nil:
		return ReasonUnserved // nobody had taken it
	case slices.Contains(failureReasons, e.Reason):
		return e.Reason
	default:
		return ReasonUnknown
	}
}
