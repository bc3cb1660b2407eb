package utilityvolume

// Reasons of a utility volume's status while it is Pending.
const (
	// ReasonClaimNotFound: the claim does not exist; create it.
	ReasonClaimNotFound = "PVCNotFound"
	// ReasonClaimIsBlock: the claim has volumeMode Block; a utility volume needs Filesystem.
	ReasonClaimIsBlock = "PVCIsBlock"
	// ReasonClaimNotBound: the claim has no volume yet.
	ReasonClaimNotBound = "PVCNotBound"
	// ReasonClaimRecord: the claim's record of its runs cannot be read; delete the annotation.
	ReasonClaimRecord = "ClaimRecordUnreadable"
	// ReasonGuestNotRunning: volumes are attached once the guest runs.
	ReasonGuestNotRunning = "GuestNotRunning"
	// ReasonPodPending: the attachment pod does not run yet; the message says why.
	ReasonPodPending = "AttachmentPodPending"
	// ReasonPodLost: the attachment pod ended or vanished and is created again.
	ReasonPodLost = "AttachmentPodLost"
	// ReasonPodRefused: the API server refused the attachment pod; the message quotes it.
	ReasonPodRefused = "AttachmentPodRefused"
	// ReasonPodForeign: a pod that Varve did not make has the attachment pod's name; delete it.
	ReasonPodForeign = "AttachmentPodForeign"
	// ReasonHeldByBackup: the instance ended, and the volume is kept until a backup's partial files are removed.
	ReasonHeldByBackup = "HeldByBackup"
)
