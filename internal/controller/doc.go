// Package controller is the cluster's part of Varve: one manager with one controller a decision, each in a package below this one.
//
//	virtualmachine           machine -> instance
//	changedblocktracking     selectors -> tracking states and the claims for overlays
//	virtualmachineinstance   instance -> launcher pod -> phase
//	utilityvolume            utility volumes -> attachment pods
//	backup                   a backup's life outside the node
//
// The controllers share nothing but the manager: each reads objects, decides in a pure function and writes the fields that are its own,
// with optimistic concurrency. Several replicas may run; the one that holds the lease works, and another goes on where it stopped.
package controller

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=varve,verbs=get;list;watch;create;update;patch
