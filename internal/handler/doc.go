// Package handler is the node agent, `varve handler`: one process a node, in a privileged DaemonSet pod that has the
// kubelet's directory mounted at its own path with propagation Bidirectional.
//
// It reconciles the VirtualMachineInstances of its node and their VirtualMachineBackups, and nothing else: its caches hold no
// other node's objects. Each idea has its package:
//
//	link        the connection to each launcher and its last state
//	mount       paths, mounts and sockets below the kubelet's directory; what is not trusted is kept harmless there
//	instance    start, status, stop, utility volumes, checkpoints after a start
//	backup      the phases Starting, Copying and Pruning of a backup
//	checkpoint  trackers, libvirt's checkpoints and bitmaps in agreement
//	metric      Prometheus metrics
//
// It may be killed at any moment: it keeps no state but the mounts, and everything is decided again from the objects, the
// launchers and the kernel's mount table.
package handler
