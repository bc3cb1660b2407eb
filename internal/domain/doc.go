// Package domain manages the libvirt domain of one guest: the XML that describes it, the overlays that track its
// disks, and the session that runs it and takes its checkpoints and backups.
//
// It has three parts that can be used alone:
//
//   - DomainXML and TargetDevices are pure functions from an instance to a document.
//   - Overlays keeps the qcow2 files that hold the bitmaps. It needs files and qemu-storage-daemon, but no libvirt.
//     An overlay is bound to the identity of the disk below it. It is kept only if nothing can have written to the disk without it.
//   - Session talks to libvirtd. It is built only with cgo and the tag libvirt_dlopen, so that programs
//     without libvirt (the CLI, the controllers) can import the rest.
//
// Everything above relies on these invariants:
//
//   - The raw disk alone is complete at every moment (qcow2 with data-file-raw).
//   - A bitmap that may have missed a write is reported as lost and never used: the next backup of the disk is full.
//   - Every document about disks lists every disk of the domain. A disk that is not listed gets
//     libvirt's default, which is not always "no".
//
// Several goroutines may use a Session or an Overlays at once. The caller must order calls that change the same
// checkpoint, backup or overlay.
package domain
