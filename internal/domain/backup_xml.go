package domain

import (
	"fmt"
	"slices"
	"strconv"

	"libvirt.org/go/libvirtxml"

	"github.com/varvebackup/varve/internal/errclass"
)

// backupXML returns the documents of a push backup: the job's and the checkpoint's, which is empty if the backup
// makes no checkpoint. Both list every disk of the domain.
func backupXML(b Backup, domain diskMap) (job, checkpoint string, err error) {
	doc := libvirtxml.DomainBackup{Push: &libvirtxml.DomainBackupPush{Disks: &libvirtxml.DomainBackupPushDisks{}}}
	for _, want := range b.Disks {
		found, ok := domain.findVolume(want.Volume)
		if !ok {
			return "", "", fmt.Errorf("%w: the domain has no disk %s", errclass.Invalid, want.Volume)
		}
		if !found.Tracked && (b.Checkpoint != "" || want.Incremental != "") {
			return "", "", fmt.Errorf("%w: disk %s is not tracked", errclass.Invalid, want.Volume)
		}
	}
	var included []string
	for _, d := range domain {
		i := slices.IndexFunc(b.Disks, func(w BackupDisk) bool { return w.Volume == d.Volume })
		if i < 0 {
			doc.Push.Disks.Disks = append(doc.Push.Disks.Disks, libvirtxml.DomainBackupPushDisk{Name: d.Target, Backup: "no"})
			continue
		}
		included = append(included, d.Volume)
		doc.Push.Disks.Disks = append(doc.Push.Disks.Disks, pushDisk(d.Target, b.Disks[i]))
	}
	if job, err = doc.Marshal(); err != nil || b.Checkpoint == "" {
		return job, "", err
	}
	checkpoint, err = checkpointXML(Checkpoint{Name: b.Checkpoint, Volumes: included}, domain)
	return job, checkpoint, err
}

func pushDisk(target string, want BackupDisk) libvirtxml.DomainBackupPushDisk {
	d := libvirtxml.DomainBackupPushDisk{
		Name:       target,
		Backup:     "yes",
		BackupMode: "full",
		Driver:     &libvirtxml.DomainBackupDiskDriver{Type: "qcow2"},
		Target:     &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: want.Target}},
	}
	if want.Incremental != "" {
		d.BackupMode, d.Incremental = "incremental", want.Incremental
	}
	return d
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
