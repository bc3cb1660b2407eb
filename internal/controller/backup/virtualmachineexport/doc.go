// Package virtualmachineexport reconciles VirtualMachineExports: it makes the pod that serves an export, and the Service,
// the certificate and the token that go with it.
//
// What is exported is behind the interface sourceHandler, which has two implementations: volumeSource for a claim or a
// machine's claims, and backupSource for a VirtualMachineBackup in pull mode (VEP 25, "Pull Mode M.O.").
//
// decide is a pure function from everything that was read to what has to be done. The reconciler reads what belongs to
// the export from the API server and not from a cache, so that an object with one of its names is either the export's,
// by the owner's UID, or somebody else's. It never adopts, changes or deletes the latter. Everything that it makes is
// owned by the export and goes with it.
//
// A claim is served only as long as nobody can write to it. If a pod comes up that can, the export pod is deleted. The
// export pod mounts claims read-only, which also tells the controller of instances that no run of the claim has begun.
//
// Trust comes before use: status lists the authorities of a certificate before the certificate is issued.
//
// If the API server refuses an object, status quotes the refusal (RequestRefused), and the request is repeated. Secrets
// and the pods of others are not watched. An export that waits for one looks again after retryUnwatched or
// retryInUse, and one that runs looks after them every lookEvery.
package virtualmachineexport

// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports/finalizers,verbs=update
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch
