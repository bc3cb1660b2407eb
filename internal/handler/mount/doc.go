// Package mount brings the directory of an attached claim into a running launcher pod, and takes it away
// again.
//
// The claim is mounted on the node by the kubelet, for the attachment pod. A clone of that mount is placed
// into the launcher pod's emptyDir "utility"; the emptyDir is mounted into the launcher with propagation
// HostToContainer, so that the clone appears there.
//
// Two things make this dangerous, and this package is where they are kept harmless:
//
//   - The launcher can write into its emptyDirs and is not trusted by the privileged process that runs this
//     code. Every path is therefore resolved below the kubelet's pods directory with openat2(2) and without
//     symbolic links, and every effect (mount, unmount, mkdir, rmdir) goes through the file descriptor that
//     was checked, never through a path that could have changed since.
//   - The kubelet removes an emptyDir of the default medium with os.RemoveAll as soon as the pod's containers are
//     dead. That walks into a mount below it and deletes the user's backups. An emptyDir that is a tmpfs it
//     unmounts first, which the kernel refuses (EBUSY) while anything is mounted below. So the utility
//     directory is covered by a small tmpfs before anything is mounted into it: see [Mounts.Cover].
//
// Everything is idempotent and keeps no state: what is mounted is read from the kernel. Methods may be called
// concurrently for different pods; calls for one pod must not overlap.
package mount
