package imagebackup

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/store/names"
)

const (
	// LabelBackup is on everything that is made for a backup; its value is the backup's UID.
	LabelBackup = layout.Prefix + "image-backup"
	// uploadTimeout bounds each wait of a DataUpload, as the command line has it.
	uploadTimeout = 10 * time.Minute
)

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

// volumeSize is what claim and volume ask for. It tells nobody anything: the device is as large as the image.
func volumeSize(b *longhornv1.BackupBackingImage) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(b.Status.Size, resource.BinarySI)}
}

func newClaim(b *longhornv1.BackupBackingImage) *corev1.PersistentVolumeClaim {
	m := childMeta(b)
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: m,
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode:       ptr.To(corev1.PersistentVolumeBlock),
			StorageClassName: ptr.To(""), VolumeName: m.Name,
			Resources: corev1.VolumeResourceRequirements{Requests: volumeSize(b)},
		},
	}
}

// newVolume returns the PersistentVolume from which the image is read, for its claim. It has no owner, because backups
// have a namespace and volumes have none: the backup's finalizer deletes it.
func newVolume(
	b *longhornv1.BackupBackingImage, claim *corev1.PersistentVolumeClaim, from place,
) *corev1.PersistentVolume {
	m := childMeta(b)
	m.Namespace, m.OwnerReferences = "", nil
	return &corev1.PersistentVolume{
		ObjectMeta: m,
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      volumeSize(b),
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode:                    ptr.To(corev1.PersistentVolumeBlock),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: names.Driver, VolumeHandle: m.Name, VolumeAttributes: map[string]string{
					names.ContextDisk: from.disk, names.ContextImage: b.Spec.BackingImage,
					names.ContextImageUUID: b.Status.ImageUUID,
				},
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: names.TopologyNode, Operator: corev1.NodeSelectorOpIn, Values: []string{from.node},
				}}}},
			}},
		},
	}
}

func newUpload(b *longhornv1.BackupBackingImage) *velerov2.DataUpload {
	m := childMeta(b)
	return &velerov2.DataUpload{
		ObjectMeta: m,
		Spec: velerov2.DataUploadSpec{
			SnapshotType: velerov2.SnapshotImage, SourceNamespace: m.Namespace, SourcePVC: m.Name,
			BackupStorageLocation: b.Status.Location, DataMover: datamove.Mover,
			OperationTimeout: velerov1.Duration{Duration: uploadTimeout},
			DataMoverConfig: map[string]string{
				datamove.ConfigDiskBytes:    strconv.FormatInt(b.Status.Size, 10),
				datamove.ConfigDiskChecksum: b.Status.Checksum,
			},
		},
	}
}
