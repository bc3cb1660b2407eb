// Package lostvolume finishes the deletion of volumes whose node or disk is gone for good. Each node's store deletes
// only its own volumes, so nobody else would: their PersistentVolumes would keep the provisioner's finalizer for ever,
// and their Volumes and Replicas the images that they are clones of.
//
// A node is gone for good if an administrator has deleted its Node of longhorn.io and its store does not report. A
// disk is gone if its node's store reports, has seen every disk of spec.disks, and no Node lists that disk. A node that
// is only down keeps its Node, and a disk that is only not mounted keeps its status: neither is ever given up. A node
// or a disk must have been gone for a while, so that stores that are being installed have time to report.
//
// Only volumes that nobody can use go: those whose PersistentVolume is released or being deleted, and those without a
// PersistentVolume and a claim. What such a volume has on its disk is out of reach. If the disk comes back, its store
// reports the head as one that no Replica has.
package lostvolume

// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=nodes;instancemanagers,verbs=get;list;watch
// +kubebuilder:rbac:groups=longhorn.io,namespace=varve,resources=volumes;replicas,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get;list;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io;"",resources=events,verbs=create;patch
