package v2alpha1

// Phase is where the movement of a volume's data stands. An object without a phase is New. Velero reads Completed, Failed and
// Canceled as the end.
//
// +kubebuilder:validation:Enum=New;Accepted;Prepared;InProgress;Canceling;Canceled;Completed;Failed
type Phase string

const (
	// PhaseNew: no node has taken the object.
	PhaseNew Phase = "New"
	// PhaseAccepted: status.acceptedByNode has taken the object and makes its volume accessible to a mover pod.
	PhaseAccepted Phase = "Accepted"
	// PhasePrepared: the mover pod runs on status.node.
	PhasePrepared Phase = "Prepared"
	// PhaseInProgress: data is being moved; status.progress says how much.
	PhaseInProgress Phase = "InProgress"
	// PhaseCanceling: spec.cancel was seen, and what was begun is being ended.
	PhaseCanceling Phase = "Canceling"
	// PhaseCanceled: it was cancelled, and nothing is left of it.
	PhaseCanceled Phase = "Canceled"
	// PhaseCompleted: the data was moved.
	PhaseCompleted Phase = "Completed"
	// PhaseFailed: the data was not moved; status.message says why.
	PhaseFailed Phase = "Failed"
)

// Ended says that the phase is one that no object leaves.
func (p Phase) Ended() bool {
	return p == PhaseCompleted || p == PhaseFailed || p == PhaseCanceled
}

// NodeOS is the operating system of a node.
//
// +kubebuilder:validation:Enum=auto;linux;windows
type NodeOS string

const (
	// NodeLinux is Linux.
	NodeLinux NodeOS = "linux"
	// NodeWindows is Windows, where Varve has no movers.
	NodeWindows NodeOS = "windows"
	// NodeAuto leaves the choice to the data mover.
	NodeAuto NodeOS = "auto"
)

// Progress is how much of a volume was moved.
type Progress struct {
	// totalBytes is the size of what is to be moved.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// bytesDone is how many of them were moved.
	// +optional
	BytesDone int64 `json:"bytesDone,omitempty"`
}

// Percent returns how much was moved, in percent. It is 99 at most: only a phase says that everything was.
func (p Progress) Percent() int {
	if p.TotalBytes <= 0 {
		return 0
	}
	return int(min(99, float64(p.BytesDone)/float64(p.TotalBytes)*100))
}
