package harvesterbackup

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/reconcile"
)

// uploads are the DataUploads of a backup.
type uploads = child.Movements[*velerov2.DataUpload]

// makeChildren makes what the backup needs, the DataUploads last: when all of them are there, the moment is taken. Each
// is found again by its name. waiting says what is in the way for now, refused what is in the way for ever. The
// DataUploads that it makes are added to all.
func (r *reconciler) makeChildren(ctx context.Context, b *harvesterv1.VirtualMachineBackup, all uploads) (waiting, refused string, err error) {
	if isTracked(b) {
		if waiting, refused, err := r.makeTracker(ctx, b); waiting != "" || refused != "" || err != nil {
			return waiting, refused, err
		}
	}
	if refused, err := r.makeDefinition(ctx, b); refused != "" || err != nil {
		return "", refused, err
	}
	if waiting, refused, err := r.makeSource(ctx, b); waiting != "" || refused != "" || err != nil {
		return waiting, refused, err
	}
	for i := range b.Status.VolumeBackups {
		v := &b.Status.VolumeBackups[i]
		if all[v.VolumeName] != nil {
			continue
		}
		u := r.newUpload(b, v)
		if refused, err := r.children.Make(ctx, b.UID, u); refused != "" || err != nil {
			return "", refused, err
		}
		all[v.VolumeName] = u
	}
	return "", "", child.NoteMade(ctx, r.cached, b)
}

// makeSource makes the export that the disks are read from, or the claim for what the guest overwrites meanwhile, and,
// beside KubeVirt, KubeVirt's backup.
func (r *reconciler) makeSource(
	ctx context.Context, b *harvesterv1.VirtualMachineBackup,
) (waiting, refused string, err error) {
	if isTracked(b) {
		refused, err = r.children.Make(ctx, b.UID, scratchClaim(b))
		if refused != "" || err != nil || !r.BesideKubeVirt {
			return "", refused, err
		}
		return r.makePull(ctx, b)
	}
	if b.Status.Untracked != nil {
		if waiting, refused, err := r.readyUntracked(ctx, b); waiting != "" || refused != "" || err != nil {
			return waiting, refused, err
		}
	}
	refused, err = r.children.Make(ctx, b.UID, machineExport(b))
	return "", r.nameGate(refused, gateExport), err
}

// makeTracker makes the tracker of the machine and the location, which goes with the machine.
func (r *reconciler) makeTracker(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (waiting, refused string, err error) {
	t := newTracker(b)
	have, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(t), &backupv1.VirtualMachineBackupTracker{})
	switch {
	case err != nil:
		return "", "", err
	case have == nil:
		err := r.cached.Create(ctx, t)
		switch {
		case err == nil || apierrors.IsAlreadyExists(err):
			return "", "", nil
		case child.IsFinal(err):
			return "", fmt.Sprintf("create tracker %s: %v", t.Name, err), nil
		}
		return "", "", fmt.Errorf("create tracker %s: %w", t.Name, err)
	case have.DeletionTimestamp != nil:
		return fmt.Sprintf("the old VirtualMachineBackupTracker %s to go", t.Name), "", nil
	case have.Spec.Source.Name != b.Spec.Source.Name:
		return "", fmt.Sprintf("VirtualMachineBackupTracker %s is of virtual machine %s: delete it, and create another backup", t.Name, have.Spec.Source.Name), nil
	}
	return "", "", nil
}

// makeDefinition makes the Secret with the machine's definition.
func (r *reconciler) makeDefinition(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (refused string, err error) {
	secret := definitionSecret(r.Namespace, b)
	have, err := reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(secret), &corev1.Secret{})
	if err != nil || have != nil && have.Labels[LabelBackup] == string(b.UID) {
		return "", err
	}
	d, err := r.readDefinition(ctx, b)
	if err != nil {
		return "", err
	}
	text, err := d.Encode()
	if err != nil {
		return err.Error(), nil //nolint:nilerr // the refusal says it
	}
	secret.Data = map[string][]byte{datamove.DefinitionKey: text}
	return r.children.Make(ctx, b.UID, secret)
}

// readDefinition returns the machine's definition with the Secrets and ConfigMaps that are there.
func (r *reconciler) readDefinition(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (*definition.Definition, error) {
	d := &definition.Definition{
		Backup:  definition.Backup{Namespace: b.Namespace, Name: b.Name, UID: b.UID, Time: b.CreationTimestamp.Time},
		Machine: *b.Status.Source, ExcludedVolumes: b.Status.ExcludedVolumes,
	}
	for _, v := range b.Status.VolumeBackups {
		d.Claims = append(d.Claims, definition.Claim{
			Volume:                v.VolumeName,
			PersistentVolumeClaim: v.PersistentVolumeClaim,
		})
	}
	secrets, configMaps, err := definition.References(b.Status.Source.Spec)
	if err != nil {
		return nil, err
	}
	for _, name := range secrets {
		s, err := reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: b.Namespace, Name: name},
			&corev1.Secret{})
		if err != nil {
			return nil, err
		}
		if s != nil {
			d.Secrets = append(d.Secrets, definition.Secret{
				Name: name, Type: s.Type, Labels: s.Labels,
				Annotations: s.Annotations, Data: s.Data,
			})
		}
	}
	for _, name := range configMaps {
		c, err := reconcile.Find(ctx, r.live, types.NamespacedName{Namespace: b.Namespace, Name: name},
			&corev1.ConfigMap{})
		if err != nil {
			return nil, err
		}
		if c != nil {
			d.ConfigMaps = append(d.ConfigMaps, definition.ConfigMap{
				Name: name, Labels: c.Labels,
				Annotations: c.Annotations, Data: c.Data, BinaryData: c.BinaryData,
			})
		}
	}
	return d, nil
}

// definitionSecret returns the Secret without its content. It is in Varve's namespace, where nothing of the machine's
// can own it.
func definitionSecret(namespace string, b *harvesterv1.VirtualMachineBackup) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: datamove.DefinitionSecret(string(b.UID))},
		Type:       datamove.DefinitionSecretType,
	}
}

// newTracker returns the tracker of the machine for the location. It belongs to the machine: its checkpoints mean
// nothing without it.
func newTracker(b *harvesterv1.VirtualMachineBackup) *backupv1.VirtualMachineBackupTracker {
	machine := definition.MachineKind
	return &backupv1.VirtualMachineBackupTracker{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Namespace, Name: trackerName(*b.Status.SourceUID, *b.Status.Location),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: machine.GroupVersion().String(), Kind: machine.Kind,
				Name: b.Spec.Source.Name, UID: *b.Status.SourceUID,
			}},
		},
		Spec: backupv1.VirtualMachineBackupTrackerSpec{Source: corev1.TypedLocalObjectReference{APIGroup: ptr.To(machine.Group), Kind: machine.Kind, Name: b.Spec.Source.Name}},
	}
}

// ownerReference makes a backup the owner of what is in its namespace.
func ownerReference(b *harvesterv1.VirtualMachineBackup) metav1.OwnerReference {
	return *metav1.NewControllerRef(b, harvesterv1.GroupVersion.WithKind(harvesterv1.SourceKind+"Backup"))
}

// scratchClaim returns the claim that takes in what the guest overwrites while its disks are read.
func scratchClaim(b *harvesterv1.VirtualMachineBackup) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Namespace, Name: scratchName(b.Status.Group),
			OwnerReferences: []metav1.OwnerReference{ownerReference(b)},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: scratchClass(b),
			Resources: scratchRequest(b.Status.ScratchBytes),
		},
	}
}

// newUpload returns the DataUpload of a disk.
func (r *reconciler) newUpload(b *harvesterv1.VirtualMachineBackup, v *harvesterv1.VolumeBackup) *velerov2.DataUpload {
	config := r.diskConfig(b, v)
	config[datamove.ConfigMachine], config[datamove.ConfigMachineBackup] = b.Spec.Source.Name, b.Name
	if patience := storagePatience(b); patience > 0 {
		config[datamove.ConfigStoragePatience] = patience.String()
	}
	return &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Status.Location.Namespace, Name: v.DataUpload,
			Labels: map[string]string{datamove.LabelGroup: b.Status.Group},
		},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotMachineBackup, SourceNamespace: b.Namespace,
			SourcePVC: v.PersistentVolumeClaim.ObjectMeta.Name, DataMover: datamove.Mover,
			BackupStorageLocation: b.Status.Location.Name,
			OperationTimeout:      velerov1.Duration{Duration: uploadTimeout}, DataMoverConfig: config,
		},
	}
}

// leastPatience is how long a scheduled backup waits at the least for a storage that does not answer.
const leastPatience = 2 * time.Minute

// storagePatience returns how long the disks of a scheduled backup wait for a storage that does not answer: no longer
// than the backup may wait to begin, so that it has failed before many more are due. 0: as long as others.
func storagePatience(b *harvesterv1.VirtualMachineBackup) time.Duration {
	startBy, err := time.Parse(time.RFC3339, b.Annotations[harvesterv1.AnnotationStartBy])
	if err != nil {
		return 0
	}
	window := startBy.Sub(b.CreationTimestamp.Time).Truncate(time.Second)
	return min(max(window, leastPatience), datamove.DefaultStoragePatience)
}

// diskConfig says which disk a DataUpload stores, and how it is read.
func (r *reconciler) diskConfig(b *harvesterv1.VirtualMachineBackup, v *harvesterv1.VolumeBackup) map[string]string {
	if !isTracked(b) {
		disk := datamove.ExportDisk{
			Export: exportName(b.Status.Group), Group: b.Status.Group,
			Definition: string(b.UID),
		}
		return disk.Config()
	}
	if r.BesideKubeVirt {
		return pulledDisk(b, v)
	}
	disk := datamove.MachineDisk{
		Machine: b.Spec.Source.Name, Volume: v.VolumeName,
		Tracker: trackerName(*b.Status.SourceUID, *b.Status.Location), ScratchClaim: scratchName(b.Status.Group),
		SkipQuiesce: b.Annotations[harvesterv1.AnnotationFreeze] == "false", Group: b.Status.Group,
		Disks: len(b.Status.VolumeBackups), Definition: string(b.UID),
	}
	return disk.Config()
}
