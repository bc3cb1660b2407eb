package imagebackup

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/controller/store/imagevolume"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/store/names"
)

// LabelBackup is on everything that is made for a backup; its value is the backup's UID.
const LabelBackup = layout.Prefix + "image-backup"

// children are what was made for a backup. What is not there is nil.
type children struct {
	upload *velerov2.DataUpload
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// hasVolume says whether there is a claim or a volume.
func (c *children) hasVolume() bool { return c.claim != nil || c.volume != nil }

// childMeta returns the metadata of everything that is made for a backup.
func childMeta(b *longhornv1.BackupBackingImage) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: b.Namespace, Name: names.ReaderHandle(string(b.UID)),
		Labels: map[string]string{LabelBackup: string(b.UID)},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(b, longhornv1.GroupVersion.WithKind("BackupBackingImage")),
		},
	}
}

// newClaim returns the claim of the volume from which the image is read. Nobody goes by its size: the device is as
// large as the image.
func newClaim(b *longhornv1.BackupBackingImage) *corev1.PersistentVolumeClaim {
	return imagevolume.NewClaim(childMeta(b), b.Status.Size)
}

// newVolume returns the PersistentVolume from which the image is read. The backup's finalizer deletes it.
func newVolume(
	b *longhornv1.BackupBackingImage, claim *corev1.PersistentVolumeClaim, from place,
) *corev1.PersistentVolume {
	return imagevolume.NewVolume(childMeta(b), b.Status.Size, claim, from.node, map[string]string{
		names.ContextDisk: from.disk, names.ContextImage: b.Spec.BackingImage,
		names.ContextImageUUID: b.Status.ImageUUID,
	})
}

func newUpload(b *longhornv1.BackupBackingImage) *velerov2.DataUpload {
	m := childMeta(b)
	return &velerov2.DataUpload{
		ObjectMeta: m,
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotImage, SourceNamespace: m.Namespace, SourcePVC: m.Name,
			BackupStorageLocation: b.Status.Location, DataMover: datamove.Mover,
			OperationTimeout: velerov1.Duration{Duration: datamove.DefaultOperationTimeout},
			DataMoverConfig: map[string]string{
				datamove.ConfigDiskBytes:    strconv.FormatInt(b.Status.Size, 10),
				datamove.ConfigDiskChecksum: b.Status.Checksum,
			},
		},
	}
}
