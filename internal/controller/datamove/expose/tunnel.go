package expose

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Tunnel exposes disks of running machines, and makes nothing. A controller makes one pull backup for each group of DataUploads, connects
// the machine's launcher to their mover pods, and deletes the backup when all of them are stored.
type Tunnel struct{ Access }

// Expose waits until the group's backup holds its point in time, and says which of its disks is the DataUpload's.
func (t *Tunnel) Expose(ctx context.Context, upload *velerov2.DataUpload) (Exposure, error) {
	asked, err := datamove.ParseMachineDisk(upload.Spec.DataMoverConfig)
	if err != nil {
		return Exposure{}, refuse("%w", err)
	}
	note, err := readBackupNote(upload)
	if err != nil {
		return Exposure{}, err
	}
	b, err := t.findBackup(ctx, upload.Spec.SourceNamespace, asked.Group)
	if err != nil {
		return Exposure{}, err
	}
	// A claim that is the wrong one fails before the point in time is taken.
	instance, err := t.findInstance(ctx, upload, &asked)
	if err != nil {
		return Exposure{}, err
	}
	if waiting, err := checkGroupBackup(upload, &asked, b, note); err != nil || waiting != "" {
		return Exposure{Waiting: waiting}, err
	}
	if instance == nil || b.Status.InstanceUID != "" && instance.UID != b.Status.InstanceUID {
		return Exposure{Waiting: describe(b) + " to notice that its guest has ended"}, nil
	}
	v := includedVolume(b, asked.Volume)
	if v == nil {
		return Exposure{}, refuseVolume(b, asked.Volume)
	}
	from := &datamove.TunnelSource{BackupUID: b.UID, Volume: asked.Volume, Checkpoint: b.Status.CheckpointName}
	from.BaseCheckpoint, from.BaseUID = baseOf(b, asked.Volume)
	return t.exposeDisk(ctx, upload, b.UID, note, &Volume{Tunnel: from, Bytes: v.VirtualBytes})
}

// Finish notes that the disk is stored.
func (t *Tunnel) Finish(ctx context.Context, upload *velerov2.DataUpload) (Progress, error) {
	asked, err := datamove.ParseMachineDisk(upload.Spec.DataMoverConfig)
	if err != nil {
		return Progress{}, refuse("%w", err)
	}
	return t.finishDisk(ctx, upload, asked.Group)
}

// Dispose has nothing to do: the backup is the controller's, and the mover pod owned the rest.
func (*Tunnel) Dispose(context.Context, *velerov2.DataUpload) (Progress, error) {
	return Progress{Done: true}, nil
}

// findInstance returns the instance of the machine, if it is there. It refuses one whose volume is not on the DataUpload's claim: the restore
// point would be in the history of another disk.
func (t *Tunnel) findInstance(ctx context.Context, upload *velerov2.DataUpload, asked *datamove.MachineDisk) (*kubevirtv1.VirtualMachineInstance, error) {
	key := types.NamespacedName{Namespace: upload.Spec.SourceNamespace, Name: asked.Machine}
	instance, err := reconcile.Find(ctx, t.Live, key, &kubevirtv1.VirtualMachineInstance{})
	if err != nil || instance == nil {
		return nil, err
	}
	for i := range instance.Spec.Volumes {
		v := &instance.Spec.Volumes[i]
		if v.Name != asked.Volume {
			continue
		}
		if claim := v.PersistentVolumeClaim; claim == nil || claim.ClaimName != upload.Spec.SourcePVC {
			return nil, refuse("volume %s of %s is not on PersistentVolumeClaim %s, which spec.sourcePVC names", asked.Volume, describe(instance), upload.Spec.SourcePVC)
		}
		return instance, nil
	}
	return nil, refuse("%s has no volume %q", describe(instance), asked.Volume)
}

const useAnotherGroup = "back up the machine's disks again, with another group name"

// checkGroupBackup says what to wait for until the backup of a group can be read, or that it never can be.
func checkGroupBackup(upload *velerov2.DataUpload, asked *datamove.MachineDisk, b *backupv1.VirtualMachineBackup, note *datamove.ReadBackup) (waiting string, err error) {
	name := backupName(upload, asked.Group)
	if b == nil && note == nil {
		return fmt.Sprintf("%s to be made, which needs %s of group %s", name, describeDisks(asked.Disks), asked.Group), nil
	}
	if err := checkNoted(name, useAnotherGroup, b, note); err != nil {
		return "", err
	}
	tracker := b.Spec.TrackerName()
	switch machine := b.Status.SourceName; {
	case !b.Spec.IsPulledByDataUploads() || b.Annotations[datamove.AnnotationGroup] != datamove.GroupKey(upload.Namespace, asked.Group):
		return "", refuse("%s is somebody else's: use another group name", name)
	case tracker != asked.Tracker:
		return "", refuse("%s has %s, and this DataUpload names %s: all DataUploads of a group must name the same", name, describeTracker(tracker), describeTracker(asked.Tracker))
	case machine != "" && machine != asked.Machine:
		return "", refuse("%s is of VirtualMachine %s, not of %s: all DataUploads of a group must name the same", name, machine, asked.Machine)
	}
	if err := checkAlive(name, useAnotherGroup, b); err != nil {
		return "", err
	}
	if b.Status.Phase != backupv1.BackupServing {
		return withDetail(name+" to hold its point in time", progressOf(b)), nil
	}
	return "", nil
}

func describeDisks(n int) string {
	if n == 1 {
		return "the one DataUpload"
	}
	return fmt.Sprintf("all %d DataUploads", n)
}

func describeTracker(name string) string {
	if name == "" {
		return "no tracker"
	}
	return "tracker " + name
}
