package expose

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// What Endpoints, Tunnel and Exports have in common: the disk is in a pull backup or an export, which is known by its UID
// (datamove.ReadBackup). One that was made again under its name is another one.

// exposeDisk notes the UID of the backup or the export that a disk is read from, and returns volume with the UID of the
// disk's claim.
func (a Access) exposeDisk(ctx context.Context, upload *velerov2.DataUpload, from types.UID, note *datamove.ReadBackup, volume *Volume) (Exposure, error) {
	if note == nil {
		if err := a.remember(ctx, upload, datamove.ReadBackup{
			Version: datamove.ReadBackupVersion,
			Backup:  from,
		}); err != nil {
			return Exposure{}, err
		}
	}
	claim, err := a.findClaim(ctx, upload.Spec.SourceNamespace, upload.Spec.SourcePVC)
	if err != nil {
		return Exposure{}, err
	}
	if claim != nil {
		volume.SourceUID = claim.UID
	}
	return Exposure{Volume: volume}, nil
}

// finishDisk notes that a disk is stored. That was no disk of the backup if another one has its name by now.
func (a Access) finishDisk(ctx context.Context, upload *velerov2.DataUpload, backup string) (Progress, error) {
	note, err := readBackupNote(upload)
	if err != nil {
		return Progress{}, err
	}
	if note != nil {
		b, err := a.findBackup(ctx, upload.Spec.SourceNamespace, backup)
		if err != nil {
			return Progress{}, err
		}
		if b != nil && b.UID != note.Backup {
			return Progress{}, refuse("%s was made again while it was read, and nobody knows which one the data "+
				"is of: back up the new one", describe(b))
		}
	}
	return a.finishRead(ctx, upload, note, "VirtualMachineBackup")
}

// finishRead notes that the disk of an object of this kind, which the note names, is stored.
func (a Access) finishRead(ctx context.Context, upload *velerov2.DataUpload, note *datamove.ReadBackup, kind string) (Progress, error) {
	if note == nil {
		return Progress{}, refuse("somebody has removed the annotation %s, which says which %s was read",
			datamove.AnnotationExposed, kind)
	}
	note.Moved = true
	if err := a.remember(ctx, upload, note); err != nil {
		return Progress{}, err
	}
	return Progress{Done: true}, nil
}

func (a Access) findBackup(ctx context.Context, namespace, name string) (*backupv1.VirtualMachineBackup, error) {
	return reconcile.Find(ctx, a.Live, types.NamespacedName{Namespace: namespace, Name: name}, &backupv1.VirtualMachineBackup{})
}

// readBackupNote reads the note of a DataUpload. It returns nil if there is none.
func readBackupNote(upload *velerov2.DataUpload) (*datamove.ReadBackup, error) {
	text := upload.Annotations[datamove.AnnotationExposed]
	if text == "" {
		return nil, nil
	}
	note, err := datamove.DecodeReadBackup(text)
	return &note, err
}

func backupName(upload *velerov2.DataUpload, name string) string {
	return "VirtualMachineBackup " + upload.Spec.SourceNamespace + "/" + name
}

// checkNoted refuses a backup that is not the one of the note. One of both is not nil. advice says what to do instead.
func checkNoted(name, advice string, b *backupv1.VirtualMachineBackup, note *datamove.ReadBackup) error {
	switch {
	case b == nil:
		return refuse("%s was deleted before its data was stored: %s", name, advice)
	case note != nil && b.UID != note.Backup:
		return refuse("%s was made again while it was read: back up the new one", name)
	}
	return nil
}

// checkAlive refuses a backup that cannot be read any more.
func checkAlive(name, advice string, b *backupv1.VirtualMachineBackup) error {
	if why, ended := b.Ended(); ended {
		return refuse("%s has ended before its data was stored%s: %s", name, inBrackets(why), advice)
	}
	if b.DeletionTimestamp != nil {
		return refuse("%s was deleted before its data was stored: %s", name, advice)
	}
	return nil
}

// progressOf returns what a backup says about itself while it cannot be read.
func progressOf(b *backupv1.VirtualMachineBackup) string {
	if b.Status.Message != "" {
		return b.Status.Message
	}
	// KubeVirt 1.8 has free text in the reasons of conditions.
	for _, condition := range []string{backupv1.ConditionProgressing, backupv1.ConditionInitializing} {
		if c := meta.FindStatusCondition(b.Status.Conditions, condition); c != nil && c.Status == metav1.ConditionTrue && c.Reason != "" {
			return c.Reason
		}
	}
	return ""
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", text)
}

// includedVolume returns what a backup says about a volume of its machine; nil if it does not have it.
func includedVolume(b *backupv1.VirtualMachineBackup, volume string) *backupv1.IncludedVolume {
	for i := range b.Status.IncludedVolumes {
		if v := &b.Status.IncludedVolumes[i]; v.Name == volume || v.VolumeName == volume {
			return v
		}
	}
	return nil
}

func refuseVolume(b *backupv1.VirtualMachineBackup, volume string) error {
	return refuse("%s has no volume %q: it has %s", describe(b), volume, volumeNames(b))
}

func volumeNames(b *backupv1.VirtualMachineBackup) string {
	var names string
	for i := range b.Status.IncludedVolumes {
		v := &b.Status.IncludedVolumes[i]
		if i > 0 {
			names += ", "
		}
		if v.Name != "" {
			names += v.Name
		} else {
			names += v.VolumeName
		}
	}
	if names == "" {
		return "none"
	}
	return names
}

// isIncremental says whether a backup knows what has changed on a disk. KubeVirt 1.8 says so of all disks together.
func isIncremental(b *backupv1.VirtualMachineBackup, volume string) bool {
	if v := includedVolume(b, volume); v != nil && v.Type != "" {
		return v.Type == backupv1.Incremental
	}
	return b.Status.Type == backupv1.Incremental
}

// baseOf returns the checkpoint that a disk's changes are counted from, and the UID of the backup that made it, if both are known for
// certain. KubeVirt 1.8 does not say them.
func baseOf(b *backupv1.VirtualMachineBackup, volume string) (checkpoint string, backup types.UID) {
	base := b.Status.BaseCheckpoint
	if base == nil || base.Name == "" || base.BackupUID == "" || !isIncremental(b, volume) {
		return "", ""
	}
	return base.Name, base.BackupUID
}
