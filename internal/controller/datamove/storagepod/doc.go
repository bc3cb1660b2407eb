// Package storagepod looks into storages that only pods can mount: claims and NFS exports.
//
// Each look is a pod in Varve's namespace, which has the storage, the password if it needs one, no account and no privileges, and leaves
// what it has seen in its termination message. Its name follows from the object that it is for: a pod that a controller left when it was
// killed is deleted before the next look.
//
// Look waits for its pod, so it belongs into an errand. Whatever happens, the pod is gone or being deleted when it returns.
package storagepod

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get
// +kubebuilder:rbac:groups="",resources=events,namespace=varve,verbs=list
