// Package certificate keeps the certificate with which the stores of the nodes know each other, in the Secret
// varve-store-tls of Varve's namespace. It is a server's and a client's certificate for store.varve, signed by an
// authority that signs nothing else, in the Secret varve-store-authority. A store that has one may read every image.
//
// The Secret has the authorities, too. A new authority is in it two weeks before it signs, so that stores that have not
// read the Secret again trust it by then. A Secret that is lost, or that somebody changed, is written again.
//
// The certificate is for the stores' SnapshotMetadata service, too, which this package announces in a
// SnapshotMetadataService if the cluster has that kind.
package certificate

// +kubebuilder:rbac:groups="",resources=secrets,namespace=varve,verbs=create
// +kubebuilder:rbac:groups="",resources=secrets,namespace=varve,resourceNames=varve-store-tls;varve-store-authority,verbs=get;update
// +kubebuilder:rbac:groups=cbt.storage.k8s.io,resources=snapshotmetadataservices,verbs=create
// +kubebuilder:rbac:groups=cbt.storage.k8s.io,resources=snapshotmetadataservices,resourceNames=store.varvebackup.io,verbs=get;update
