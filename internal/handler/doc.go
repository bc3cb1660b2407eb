// Package handler is the node agent, `varve handler`. One process runs on each node, in a privileged DaemonSet pod
// that has the kubelet's directory mounted at its own path with propagation Bidirectional.
//
// It reconciles the VirtualMachineInstances of its node and their VirtualMachineBackups, of which its caches hold no
// other node's, and the DataUploads and DataDownloads that it takes. Each part has its own package:
//
//	launcherclient  the connection to each launcher and its last state
//	mount           paths, mounts and sockets below the kubelet's directory; handles untrusted paths safely
//	attachment      finds the volume of a target claim on this node
//	instance        start, status, stop, utility volumes, checkpoints after a start
//	kubevirtbackup  the phases Starting, Copying and Pruning of a VirtualMachineBackup
//	datamover       takes DataUploads and DataDownloads, and drives them to their end
//	checkpoint      keeps trackers, libvirt's checkpoints and bitmaps in agreement
//	metric          Prometheus metrics
//
// The handler may be killed at any moment. It keeps no state but the mounts, and decides everything again from the
// objects, the launchers and the kernel's mount table.
package handler
