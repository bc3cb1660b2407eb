package domain

import (
	"fmt"
	"slices"
	"strconv"

	"libvirt.org/go/libvirtxml"

	"github.com/varvebackup/varve/internal/errclass"
)

// backupXML returns the documents of a backup: the job's and the checkpoint's, which is empty if the backup
// makes no checkpoint. Both list every disk of the domain.
func backupXML(b Backup, domain diskMap) (job, checkpoint string, err error) {
	for _, want := range b.Disks {
		found, ok := domain.findVolume(want.Volume)
		if !ok {
			return "", "", fmt.Errorf("%w: the domain has no disk %s", errclass.Invalid, want.Volume)
		}
		if !found.Tracked && (b.Checkpoint != "" || want.Incremental != "") {
			return "", "", fmt.Errorf("%w: disk %s is not tracked", errclass.Invalid, want.Volume)
		}
	}
	doc, included := jobDocument(b, domain)
	if job, err = doc.Marshal(); err != nil || b.Checkpoint == "" {
		return job, "", err
	}
	checkpoint, err = checkpointXML(Checkpoint{Name: b.Checkpoint, Volumes: included}, domain)
	return job, checkpoint, err
}

// jobDocument returns the job's document, and the volumes that the backup has, in the domain's order.
func jobDocument(b Backup, domain diskMap) (doc libvirtxml.DomainBackup, included []string) {
	push, pull := &libvirtxml.DomainBackupPushDisks{}, &libvirtxml.DomainBackupPullDisks{}
	for _, d := range domain {
		i := slices.IndexFunc(b.Disks, func(w BackupDisk) bool { return w.Volume == d.Volume })
		if i < 0 {
			push.Disks = append(push.Disks, libvirtxml.DomainBackupPushDisk{Name: d.Target, Backup: "no"})
			pull.Disks = append(pull.Disks, libvirtxml.DomainBackupPullDisk{Name: d.Target, Backup: "no"})
			continue
		}
		included = append(included, d.Volume)
		push.Disks = append(push.Disks, pushDisk(d.Target, b.Disks[i]))
		pull.Disks = append(pull.Disks, pullDisk(d.Target, b.Disks[i]))
	}
	if b.Socket == "" {
		doc.Push = &libvirtxml.DomainBackupPush{Disks: push}
		return doc, included
	}
	server := &libvirtxml.DomainBackupPullServer{UNIX: &libvirtxml.DomainBackupPullServerUNIX{Socket: b.Socket}}
	doc.Pull = &libvirtxml.DomainBackupPull{Server: server, Disks: pull}
	return doc, included
}

func pushDisk(target string, want BackupDisk) libvirtxml.DomainBackupPushDisk {
	return libvirtxml.DomainBackupPushDisk{
		Name:        target,
		Backup:      "yes",
		BackupMode:  backupMode(want),
		Incremental: want.Incremental,
		Driver:      &libvirtxml.DomainBackupDiskDriver{Type: "qcow2"},
		Target:      &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: want.Target}},
	}
}

func pullDisk(target string, want BackupDisk) libvirtxml.DomainBackupPullDisk {
	d := libvirtxml.DomainBackupPullDisk{
		Name:        target,
		Backup:      "yes",
		BackupMode:  backupMode(want),
		Incremental: want.Incremental,
		ExportName:  want.Volume,
		Driver:      &libvirtxml.DomainBackupDiskDriver{Type: "qcow2"},
		Scratch:     &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: want.Target}},
	}
	if want.Incremental != "" {
		d.ExportBitmap = ChangesBitmap
	}
	return d
}

func backupMode(d BackupDisk) string {
	if d.Incremental != "" {
		return "incremental"
	}
	return "full"
}

// checkpointXML returns the document of a checkpoint on its volumes; it lists the domain's other disks as left out. A
// checkpoint with a creation time is one to redefine.
func checkpointXML(cp Checkpoint, domain diskMap) (string, error) {
	doc := libvirtxml.DomainCheckpoint{Name: cp.Name, Disks: &libvirtxml.DomainCheckpointDisks{}}
	if !cp.CreationTime.IsZero() {
		doc.CreationTime = strconv.FormatInt(cp.CreationTime.Unix(), 10)
	}
	for _, d := range domain {
		kind := "no"
		if slices.Contains(cp.Volumes, d.Volume) {
			kind = "bitmap"
		}
		doc.Disks.Disks = append(doc.Disks.Disks, libvirtxml.DomainCheckpointDisk{Name: d.Target, Checkpoint: kind})
	}
	return doc.Marshal()
}
