package vmsnapshot

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// answer is what a launcher says to FreezeGuest or ThawGuest.
type answer struct {
	// skipped says why there was nothing to do.
	skipped string
	err     error
}

// maxMessage is the longest message in bytes that a launcher has for a snapshot.
const maxMessage = 1000

// isLost says whether the launcher's answer got lost, so that it has to be asked again.
func (a answer) isLost() bool {
	return a.err != nil && status.Code(a.err) != codes.FailedPrecondition && status.Code(a.err) != codes.Unimplemented
}

// refusal returns why the launcher did not do what it was asked for, or "".
func (a answer) refusal() string {
	text := a.skipped
	if a.err != nil {
		text = status.Convert(a.err).Message()
	}
	return reconcile.CutText(text, maxMessage)
}

// afterFreeze returns what became of a freeze.
func afterFreeze(a answer) (vmsnapshotv1.QuiesceState, string) {
	if why := a.refusal(); why != "" {
		return vmsnapshotv1.NotFrozen, why
	}
	return vmsnapshotv1.Frozen, ""
}

// afterThaw returns what became of a freeze that ends. before is what was said of it until now. A freeze of which nothing
// was said was not waited for.
func afterThaw(before vmsnapshotv1.QuiesceState, a answer) (vmsnapshotv1.QuiesceState, string) {
	why := a.refusal()
	switch {
	case before == vmsnapshotv1.Frozen && why == "":
		return vmsnapshotv1.Thawed, ""
	case before == vmsnapshotv1.Frozen:
		return vmsnapshotv1.ThawedEarly, why
	case why == "":
		return vmsnapshotv1.NotFrozen, "the guest was frozen too late, and is thawed"
	}
	return vmsnapshotv1.NotFrozen, "the freeze was withdrawn: " + why
}
