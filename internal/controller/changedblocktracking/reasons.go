package changedblocktracking

// Reasons of the events of this package. A change of state is an event whose reason is ReasonState and the state, such as
// ChangedBlockTrackingEnabled.
const (
	// ReasonState is the prefix of the reason of a change of state.
	ReasonState = "ChangedBlockTracking"
	// ReasonClaimCreated: the state claim was made.
	ReasonClaimCreated = "StateClaimCreated"
	// ReasonClaimDeleted: the state claim was deleted, because the machine is not tracked any more.
	ReasonClaimDeleted = "StateClaimDeleted"
	// ReasonClaimReplaced: the state claim was too small and is made anew; the next backup is full.
	ReasonClaimReplaced = "StateClaimReplaced"
	// ReasonClaimRefused: the API server refused the state claim; the message has its words.
	ReasonClaimRefused = "StateClaimRefused"
	// ReasonClaimForeign: a claim with the state claim's name belongs to somebody else; delete it.
	ReasonClaimForeign = "StateClaimOfAnotherOwner"
	// ReasonInvalidSelector: a selector of the KubeVirt object cannot be evaluated; nothing changes until it is mended.
	ReasonInvalidSelector = "InvalidSelector"
)
