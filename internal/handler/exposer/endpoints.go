package exposer

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Endpoints exposes disks of pull backups that somebody else makes, in either dialect of their API: it finds where a disk is read, and makes
// nothing. A controller copies what opens the endpoints into the Secret of the mover pod, and deletes the backup if the DataUpload asks for
// that; both follow the note (datamove.ReadBackup). A backup is known by its UID: one that was made again under its name is another one.
type Endpoints struct{ Access }

// Expose waits until the backup is Ready, and says where the disk is.
func (e *Endpoints) Expose(ctx context.Context, upload *velerov2.DataUpload) (Exposure, error) {
	asked, err := datamove.ParseBackupDisk(upload.Spec.DataMoverConfig)
	if err != nil {
		return Exposure{}, refuse("%w", err)
	}
	note, err := readBackupNote(upload)
	if err != nil {
		return Exposure{}, err
	}
	b, err := e.findBackup(ctx, upload.Spec.SourceNamespace, asked.Backup)
	if err != nil {
		return Exposure{}, err
	}
	if waiting, err := checkBackup(upload, asked, b, note); err != nil || waiting != "" {
		return Exposure{Waiting: waiting}, err
	}
	from, err := endpointsOf(b, asked.Volume)
	if err != nil {
		return Exposure{}, err
	}
	if waiting, err := e.addCheckpoints(ctx, b, from); err != nil || waiting != "" {
		return Exposure{Waiting: waiting}, err
	}
	if note == nil {
		if err := e.remember(ctx, upload, datamove.ReadBackup{Version: datamove.ReadBackupVersion, Backup: b.UID}); err != nil {
			return Exposure{}, err
		}
	}
	volume := &Volume{Endpoint: from, Bytes: from.Bytes}
	claim, err := e.findClaim(ctx, upload.Spec.SourceNamespace, upload.Spec.SourcePVC)
	if err != nil {
		return Exposure{}, err
	}
	if claim != nil {
		volume.SourceUID = claim.UID
	}
	return Exposure{Volume: volume}, nil
}

// Finish notes that the disk is stored. That was no disk of the backup if another one has its name by now.
func (e *Endpoints) Finish(ctx context.Context, upload *velerov2.DataUpload) (Progress, error) {
	asked, err := datamove.ParseBackupDisk(upload.Spec.DataMoverConfig)
	if err != nil {
		return Progress{}, refuse("%w", err)
	}
	note, err := readBackupNote(upload)
	if err != nil {
		return Progress{}, err
	}
	if note == nil {
		return Progress{}, refuse("nobody knows which VirtualMachineBackup was read: somebody has removed the annotation %s", datamove.AnnotationExposed)
	}
	b, err := e.findBackup(ctx, upload.Spec.SourceNamespace, asked.Backup)
	if err != nil {
		return Progress{}, err
	}
	if b != nil && b.UID != note.Backup {
		return Progress{}, refuse("%s was made again while it was read, and nobody knows which one the data is of: back up the new one", describe(b))
	}
	note.Moved = true
	if err := e.remember(ctx, upload, note); err != nil {
		return Progress{}, err
	}
	return Progress{Done: true}, nil
}

// Dispose has nothing to do: the mover pod owned the only thing that was made.
func (*Endpoints) Dispose(context.Context, *velerov2.DataUpload) (Progress, error) {
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

// checkBackup says what to wait for until a backup can be read, or that it never can be.
func checkBackup(upload *velerov2.DataUpload, asked datamove.BackupDisk, b *backupv1.VirtualMachineBackup, note *datamove.ReadBackup) (waiting string, err error) {
	name := "VirtualMachineBackup " + upload.Spec.SourceNamespace + "/" + asked.Backup
	switch {
	case b == nil && note == nil:
		return name + " to be created", nil
	case b == nil:
		return "", refuse("%s was deleted before its data was stored: make another one", name)
	case note != nil && b.UID != note.Backup:
		return "", refuse("%s was made again while it was read: back up the new one", name)
	case !b.Spec.IsPull():
		return "", refuse("%s is in push mode, and has no endpoints: its data is on the claim that it names", name)
	case ptr.Deref(b.Spec.TokenSecretRef, "") == "":
		return "", refuse("%s has no tokenSecretRef: nobody knows the token of its endpoints", name)
	}
	if why, ended := b.Ended(); ended {
		return "", refuse("%s has ended before its data was stored%s: make another one", name, inBrackets(why))
	}
	if b.DeletionTimestamp != nil {
		return "", refuse("%s was deleted before its data was stored: make another one", name)
	}
	if !b.Readable() {
		return withDetail(name+" to be Ready", progressOf(b)), nil
	}
	return "", nil
}

// progressOf returns what a backup says about itself while it is not Ready.
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

// speaksKubeVirt says that a backup's endpoints are those of KubeVirt 1.8. The proposal, and Varve, have the certificates under another
// name, beside that one.
func speaksKubeVirt(b *backupv1.VirtualMachineBackup) bool { return b.Status.Cert == "" }

// endpointsOf returns where a disk of a backup is read, which is Ready.
func endpointsOf(b *backupv1.VirtualMachineBackup, volume string) (*datamove.EndpointSource, error) {
	for i := range b.Status.IncludedVolumes {
		v := &b.Status.IncludedVolumes[i]
		if v.Name != volume && v.VolumeName != volume {
			continue
		}
		from := &datamove.EndpointSource{
			Map: v.MapEndpoint, Data: v.DataEndpoint, KubeVirt: speaksKubeVirt(b), Volume: volume, BackupUID: b.UID, Bytes: v.VirtualBytes,
		}
		for kind, address := range map[string]string{"map": v.MapEndpoint, "data": v.DataEndpoint} {
			if err := checkEndpointURL(address, b.Namespace, volume, kind); err != nil {
				return nil, refuse("%s: %w", describe(b), err)
			}
		}
		if b.Status.Cert == "" && b.Status.EndpointCert == "" {
			return nil, refuse("%s is Ready, and has no certificate of its endpoints", describe(b))
		}
		return from, nil
	}
	return nil, refuse("%s has no volume %q: it has %s", describe(b), volume, volumeNames(b))
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

// addCheckpoints adds the checkpoint that the backup makes and the one that the disk's changes are counted from, as far as they are known
// for certain.
func (e *Endpoints) addCheckpoints(ctx context.Context, b *backupv1.VirtualMachineBackup, from *datamove.EndpointSource) (waiting string, err error) {
	incremental := isIncremental(b, from.Volume)
	if !from.KubeVirt {
		if b.Status.CheckpointName != "" {
			from.Checkpoint, from.CheckpointUID = b.Status.CheckpointName, b.UID
		}
		if base := b.Status.BaseCheckpoint; incremental && base != nil && base.Name != "" && base.BackupUID != "" {
			from.BaseCheckpoint, from.BaseUID = base.Name, base.BackupUID
		}
		return "", nil
	}
	return e.addTrackerCheckpoints(ctx, b, from, incremental)
}

// addTrackerCheckpoints is for KubeVirt 1.8, which does not say what a backup starts from. It is the latest checkpoint of its tracker,
// which moves when the backup has ended: so the backup must not have ended after the tracker was read.
func (e *Endpoints) addTrackerCheckpoints(ctx context.Context, b *backupv1.VirtualMachineBackup, from *datamove.EndpointSource, incremental bool) (waiting string, err error) {
	if b.Spec.TrackerName() == "" {
		return "", nil
	}
	tracker, err := reconcile.Find(ctx, e.Live, types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.TrackerName()}, &backupv1.VirtualMachineBackupTracker{})
	if err != nil || tracker == nil {
		return "", err
	}
	now, err := e.findBackup(ctx, b.Namespace, b.Name)
	if err != nil {
		return "", err
	}
	if now == nil || now.UID != b.UID || !now.Readable() {
		return describe(b) + " to be Ready: it has just changed", nil
	}
	if b.Status.CheckpointName != "" {
		from.Checkpoint, from.CheckpointUID = b.Status.CheckpointName, tracker.UID
	}
	if base := tracker.Status.LatestCheckpoint; incremental && base != nil && base.Name != "" && base.Name != b.Status.CheckpointName {
		from.BaseCheckpoint, from.BaseUID = base.Name, tracker.UID
	}
	return "", nil
}

// isIncremental says whether a backup knows what has changed on a disk. KubeVirt 1.8 says so of all disks together.
func isIncremental(b *backupv1.VirtualMachineBackup, volume string) bool {
	for i := range b.Status.IncludedVolumes {
		if v := &b.Status.IncludedVolumes[i]; (v.Name == volume || v.VolumeName == volume) && v.Type != "" {
			return v.Type == backupv1.Incremental
		}
	}
	return b.Status.Type == backupv1.Incremental
}
