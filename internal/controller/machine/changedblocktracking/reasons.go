package changedblocktracking

// Reasons of this package's events. A change of state is an event whose reason is ReasonState followed by the
// state, such as ChangedBlockTrackingEnabled.
const (
	// ReasonState is the prefix of the reason of a change of state.
	ReasonState = "ChangedBlockTracking"
	// ReasonClaimCreated: the state claim was created.
	ReasonClaimCreated = "StateClaimCreated"
	// ReasonClaimDeleted: the state claim was deleted because the machine is no longer tracked.
	ReasonClaimDeleted = "StateClaimDeleted"
	// ReasonClaimExpanded: the state claim was too small and is being expanded.
	ReasonClaimExpanded = "StateClaimExpanded"
	// ReasonClaimSucceeded: the state claim was too small, and its overlays move to a larger one at the next start.
	ReasonClaimSucceeded = "StateClaimSucceeded"
	// ReasonClaimRetired: the old state claim was deleted because its overlays have moved to a larger one.
	ReasonClaimRetired = "StateClaimRetired"
	// ReasonClaimReplaced: the state claim was too small, could neither be expanded nor moved, and is created again; the
	// next backup is full.
	ReasonClaimReplaced = "StateClaimReplaced"
	// ReasonClaimRefused: the API server refused the state claim, or its expansion; the message quotes it.
	ReasonClaimRefused = "StateClaimRefused"
	// ReasonClaimForeign: a claim with the state claim's name belongs to somebody else; delete it.
	ReasonClaimForeign = "StateClaimOfAnotherOwner"
	// ReasonInvalidSelector: a selector of the KubeVirt object cannot be evaluated; nothing changes until it is
	// fixed.
	ReasonInvalidSelector = "InvalidSelector"
)
