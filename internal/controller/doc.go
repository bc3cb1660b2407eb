// Package controller is the cluster's part of Varve: one manager that runs one controller per kind of decision,
// each in a package below this one.
//
//	virtualmachine           machine -> instance
//	changedblocktracking     selectors -> tracking states and the claims for overlays
//	virtualmachineinstance   instance -> launcher pod -> phase
//	utilityvolume            utility volumes -> attachment pods
//	virtualmachineexport     exports -> export pods, Services, certificates and tokens
//	kubevirtbackup           a VirtualMachineBackup of backup.kubevirt.io outside the node
//	backupstoragelocation    locations of Varve's namespace -> whether they can be used
//	backuprepository         repositories in locations, their passwords, and their maintenance
//	keptsnapshot             CSI snapshots that were kept for incremental uploads, until they are of no more use
//	keep                     whole machines: their backups, and the machines that come back
//	metric                   Prometheus metrics of machines and their backups
//
// The controllers share nothing but the manager. Each reads objects, decides in a pure function, and writes only
// its own fields, with optimistic concurrency. Several replicas may run: only the one that holds the lease works,
// and if it stops, another continues where it left off.
package controller

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=varve,verbs=get;list;watch;create;update;patch
