// Package domain is one guest's libvirt domain: the XML that describes it, the overlays that track
// its disks, and the session that runs it and takes its checkpoints and backups.
//
// Three parts, usable alone:
//
//   - DomainXML and TargetDevices are pure: an instance in, a document out.
//   - Overlays keeps the qcow2 files that hold the bitmaps. It needs files and qemu-storage-daemon, no libvirt.
//     An overlay is bound to the identity of the disk below it, and is kept only when nobody can have written the disk without it.
//   - Session talks to libvirtd. It is built with cgo and the tag libvirt_dlopen only, so that programs
//     without a libvirt (the CLI, the controllers) can import the rest.
//
// The invariants that everything above relies on:
//
//   - The raw disk alone is complete at every moment (qcow2 with data-file-raw).
//   - A bitmap that may have missed a write is reported as lost, never used: the next backup of the disk is full.
//   - Every document about disks lists every disk of the domain. What is not listed would get libvirt's default, and that is not always "no".
//
// A Session and an Overlays may be used by several goroutines at once, but two calls that change the
// same checkpoint, backup or overlay are the caller's to order.
package domain
