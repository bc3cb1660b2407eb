// Package csichanges asks a CSI driver which parts of a snapshot have data, and which changed since an earlier snapshot of the same
// volume. It is a client of the SnapshotMetadata service of Kubernetes (KEP 3314), which a driver announces by a SnapshotMetadataService
// (cbt.storage.k8s.io/v1alpha1) of its name.
//
// What comes back decides what a backup leaves out, and it comes from another program: an answer that breaks a rule of the protocol is
// errclass.Corrupt as a whole, and whoever asked reads everything instead. So is an answer that says nothing at all. A stream that breaks
// off is continued where it ended, as long as each attempt brings something new. A server that says nothing for the idle time, or sends
// what brings nothing new, is asked again. One that brings nothing new for minutes is given up, however it fails, and so is one whose answer
// takes longer than reading everything may. Of an answer that does not end well nothing is returned.
//
// Mover pods ask, for uploads of Block volumes (internal/moverpod). A driver needs the earlier snapshot, or at least its handle, to tell what has
// changed since: the handle is in the restore point of the earlier upload.
package csichanges
