package domain

import "strings"

// libvirtName is a checkpoint's name as libvirt and QEMU know it. A checkpoint is named `<tracker>-<RFC 3339
// time>` (VEP 25), but libvirt's schema refuses a colon. An underscore cannot stand in a tracker's name, so nothing is lost.
func libvirtName(checkpoint string) string { return strings.ReplaceAll(checkpoint, ":", "_") }

// checkpointName undoes libvirtName.
func checkpointName(name string) string { return strings.ReplaceAll(name, "_", ":") }

// forLibvirt names the checkpoints of a backup as libvirt knows them.
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
