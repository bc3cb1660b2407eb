package v1beta1

// Reasons of the condition Ready. Those that are about claims are also reasons of PVCReady.
const (
	// ReasonPodReady: the export is served.
	ReasonPodReady = "PodReady"
	// ReasonPodPending: the export pod is being created or does not run yet; the message says why.
	ReasonPodPending = "PodPending"
	// ReasonPodNotReady: the export pod runs and cannot serve yet; the message says why.
	ReasonPodNotReady = "PodNotReady"
	// ReasonPodLost: the export pod has ended or was deleted, and is created again.
	ReasonPodLost = "PodLost"
	// ReasonGateDisabled: a feature gate is off; the message names it.
	ReasonGateDisabled = "FeatureGateDisabled"
	// ReasonSourceNotFound: the backup or the virtual machine does not exist.
	ReasonSourceNotFound = "SourceNotFound"
	// ReasonBackupNotReady: the backup has nothing to pull yet.
	ReasonBackupNotReady = "BackupNotReady"
	// ReasonBackupEnded: the backup has ended. Nothing is served any more.
	ReasonBackupEnded = "BackupEnded"
	// ReasonNotPull: the backup is not in pull mode, and has nothing to export.
	ReasonNotPull = "NotAPullBackup"
	// ReasonNoVolumes: the virtual machine has no disks on claims.
	ReasonNoVolumes = "NoVolumes"
	// ReasonClaimNotFound: a claim does not exist.
	ReasonClaimNotFound = "PVCNotFound"
	// ReasonClaimNotBound: a claim has no volume.
	ReasonClaimNotBound = "PVCNotBound"
	// ReasonClaimInUse: a pod can write to a claim; the message names the pod.
	ReasonClaimInUse = "PVCInUse"
	// ReasonClaimBound: every claim is bound and nobody writes to it. A reason of PVCReady alone.
	ReasonClaimBound = "PVCBound"
	// ReasonTokenNotFound: the Secret that tokenSecretRef names does not exist.
	ReasonTokenNotFound = "TokenSecretNotFound"
	// ReasonTokenInvalid: the Secret that tokenSecretRef names has no key token, an empty one, or one of fewer than 16 characters.
	ReasonTokenInvalid = "TokenSecretInvalid"
	// ReasonForeign: an object that is not this export's has a name that the export needs; the message names it.
	ReasonForeign = "NameTaken"
	// ReasonRefused: the API server refuses an object that the export needs; the message quotes it.
	ReasonRefused = "RequestRefused"
)
