package domain

import "strings"

// libvirtName returns a checkpoint's name as libvirt and QEMU know it. A checkpoint is named `<tracker>-<RFC 3339
// time>` (VEP 25), but libvirt's schema rejects a colon. A tracker's name cannot contain an underscore, so nothing is lost.
func libvirtName(checkpoint string) string { return strings.ReplaceAll(checkpoint, ":", "_") }

// checkpointName undoes libvirtName.
func checkpointName(name string) string { return strings.ReplaceAll(name, "_", ":") }

// forLibvirt returns the backup with the names of its checkpoints as libvirt knows them.
func (b Backup) forLibvirt() Backup {
	b.Checkpoint = libvirtName(b.Checkpoint)
	disks := make([]BackupDisk, len(b.Disks))
	for i, d := range b.Disks {
		d.Incremental = libvirtName(d.Incremental)
		disks[i] = d
	}
	b.Disks = disks
	return b
}
