package expose

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
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
	return e.exposeDisk(ctx, upload, b.UID, note, &Volume{Endpoint: from, Bytes: from.Bytes})
}

// Finish notes that the disk is stored. That was no disk of the backup if another one has its name by now.
func (e *Endpoints) Finish(ctx context.Context, upload *velerov2.DataUpload) (Progress, error) {
	asked, err := datamove.ParseBackupDisk(upload.Spec.DataMoverConfig)
	if err != nil {
		return Progress{}, refuse("%w", err)
	}
	return e.finishDisk(ctx, upload, asked.Backup)
}

// Dispose has nothing to do: the mover pod owned the only thing that was made.
func (*Endpoints) Dispose(context.Context, *velerov2.DataUpload) (Progress, error) {
	return Progress{Done: true}, nil
}

const makeAnother = "make another one"

// checkBackup says what to wait for until a backup can be read, or that it never can be.
func checkBackup(upload *velerov2.DataUpload, asked datamove.BackupDisk, b *backupv1.VirtualMachineBackup, note *datamove.ReadBackup) (waiting string, err error) {
	name := backupName(upload, asked.Backup)
	if b == nil && note == nil {
		return name + " to be created", nil
	}
	if err := checkNoted(name, makeAnother, b, note); err != nil {
		return "", err
	}
	switch {
	case !b.Spec.IsPull():
		return "", refuse("%s is in push mode, and has no endpoints: its data is on the claim that it names", name)
	case ptr.Deref(b.Spec.TokenSecretRef, "") == "":
		return "", refuse("%s has no tokenSecretRef: nobody knows the token of its endpoints", name)
	}
	if err := checkAlive(name, makeAnother, b); err != nil {
		return "", err
	}
	if !b.Readable() {
		return withDetail(name+" to be Ready", progressOf(b)), nil
	}
	return "", nil
}

// speaksKubeVirt says that a backup's endpoints are those of KubeVirt 1.8. The proposal, and Varve, have the certificates under another
// name, beside that one.
func speaksKubeVirt(b *backupv1.VirtualMachineBackup) bool { return b.Status.Cert == "" }

// endpointsOf returns where a disk of a backup is read, which is Ready.
func endpointsOf(b *backupv1.VirtualMachineBackup, volume string) (*datamove.EndpointSource, error) {
	v := includedVolume(b, volume)
	if v == nil {
		return nil, refuseVolume(b, volume)
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

// addCheckpoints adds the checkpoint that the backup makes and the one that the disk's changes are counted from, as far as they are known
// for certain.
func (e *Endpoints) addCheckpoints(ctx context.Context, b *backupv1.VirtualMachineBackup, from *datamove.EndpointSource) (waiting string, err error) {
	if from.KubeVirt {
		return e.addTrackerCheckpoints(ctx, b, from, isIncremental(b, from.Volume))
	}
	if b.Status.CheckpointName != "" {
		from.Checkpoint, from.CheckpointUID = b.Status.CheckpointName, b.UID
	}
	from.BaseCheckpoint, from.BaseUID = baseOf(b, from.Volume)
	return "", nil
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
	key := types.NamespacedName{Namespace: tracker.Namespace, Name: tracker.Spec.Source.Name}
	instance, err := reconcile.Find(ctx, e.Live, key, &kubevirtv1.VirtualMachineInstance{})
	if err != nil {
		return "", err
	}
	now, err := e.findBackup(ctx, b.Namespace, b.Name)
	if err != nil {
		return "", err
	}
	if now == nil || now.UID != b.UID || !now.Readable() {
		return describe(b) + " to be Ready: it has just changed", nil
	}
	if instance == nil {
		return "", nil
	}
	run := runOf(tracker, instance)
	if b.Status.CheckpointName != "" {
		from.Checkpoint, from.CheckpointUID = b.Status.CheckpointName, run
	}
	if base := tracker.Status.LatestCheckpoint; incremental && base != nil && base.Name != "" && base.Name != b.Status.CheckpointName {
		from.BaseCheckpoint, from.BaseUID = base.Name, run
	}
	from.FullReason = whyNoBase(b, tracker, instance, incremental)
	return "", nil
}

// whyNoBase says why a disk is read as a whole although an earlier backup has a checkpoint; "": the checkpoint counts, or
// there is none.
func whyNoBase(
	b *backupv1.VirtualMachineBackup, tracker *backupv1.VirtualMachineBackupTracker,
	instance *kubevirtv1.VirtualMachineInstance, incremental bool,
) string {
	base := tracker.Status.LatestCheckpoint
	switch {
	case base == nil || base.Name == "" || base.Name == b.Status.CheckpointName:
		return ""
	case base.CreationTime.Before(&instance.CreationTimestamp):
		return datamove.FullMachineRestarted
	case b.Spec.ForceFullBackup:
		return string(backupv1.FullForced)
	case !incremental:
		return string(backupv1.FullNoCheckpoint)
	}
	return ""
}

// runOf returns what makes the checkpoints of a tracker unique within one run of its guest. KubeVirt takes a bitmap that
// an earlier run has left for complete, and writes of a run that it did not track, or of somebody else while the machine
// was stopped, are not in it. So a base of another run is none.
func runOf(tracker *backupv1.VirtualMachineBackupTracker, instance *kubevirtv1.VirtualMachineInstance) types.UID {
	return tracker.UID + "." + instance.UID
}
