// Package imagevolume describes the block volumes of the store through which a pod writes or reads an image, and their
// claims. A volume and its claim name each other, so that neither binds anything else. The controllers that make them
// also delete them.
package imagevolume

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/store/names"
)

// NewClaim returns the claim of a volume. Both have the name in m, which is the volume's handle, and ask for bytes.
func NewClaim(m metav1.ObjectMeta, bytes int64) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: m,
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode:       ptr.To(corev1.PersistentVolumeBlock),
			StorageClassName: ptr.To(""), VolumeName: m.Name,
			Resources: corev1.VolumeResourceRequirements{Requests: storageOf(bytes)},
		},
	}
}

// NewVolume returns the PersistentVolume for a claim, on a node. attributes tell the store what the volume is. The
// volume has no owner, because owners have a namespace and it has none: delete it before the owner's finalizer goes.
func NewVolume(
	m metav1.ObjectMeta, bytes int64, claim *corev1.PersistentVolumeClaim, node string, attributes map[string]string,
) *corev1.PersistentVolume {
	m.Namespace, m.OwnerReferences = "", nil
	return &corev1.PersistentVolume{
		ObjectMeta: m,
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      storageOf(bytes),
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode:                    ptr.To(corev1.PersistentVolumeBlock),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: names.Driver, VolumeHandle: m.Name, VolumeAttributes: attributes,
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: names.TopologyNode, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
				}}}},
			}},
		},
	}
}

func storageOf(bytes int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
}
