// Package mount mounts a machine's directory of an attached claim into its running launcher pod, and unmounts it again.
//
// The kubelet mounts the claim on the node for the attachment pod. This package places a clone of that mount, with the
// machine's directory as its root, into the launcher pod's emptyDir "utility". The emptyDir is mounted into the
// launcher with propagation HostToContainer, so the clone appears there. The launcher is not root: the package also lets
// its user use the directory, and the claims of its own pod.
//
// Two things make this dangerous, and this package makes them safe:
//
//   - The launcher can write into its emptyDirs, and the privileged process that runs this code does not trust it.
//     So every path is resolved below the kubelet's pods directory with openat2(2) and without symbolic links.
//     Every effect (mount, unmount, mkdir, rmdir) goes through the file descriptor that was checked, never through
//     a path that could have changed since.
//   - As soon as the pod's containers are dead, the kubelet removes an emptyDir of the default medium with
//     os.RemoveAll. That walks into a mount below it and deletes the user's backups. If an emptyDir is a tmpfs, the
//     kubelet unmounts it first, which the kernel refuses (EBUSY) while anything is mounted below. So the utility
//     directory is covered by a small tmpfs before anything is mounted into it: see [Mounts.Cover].
//
// A target's storage may be a server that does not answer, and may hold whatever a launcher has put there. So every
// call that can reach a target goes through a gate, which leaves a call behind that does not come back and admits no
// other one about the volume; and what is removed from a target is removed with a bounded number of descriptors,
// names in memory and steps.
//
// Everything is idempotent and keeps no state: what is mounted is read from the kernel. Methods are safe for
// concurrent use with different pods; calls for the same pod must not overlap.
package mount
