package utilityvolume

import (
	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
)

// attachmentPod returns the pod that keeps a utility volume on the node with this hostname. The pod goes through the
// scheduler, which binds a claim that waits for its first consumer. It has no privileges: all it does is to have
// the claim mounted.
func attachmentPod(
	instance *kubevirtv1.VirtualMachineInstance, v kubevirtv1.UtilityVolume, hostname string, image holdpod.Image,
) *corev1.Pod {
	pod := holdpod.New(instance, layout.AttachmentPod(instance.Name, instance.UID, v.Name), layout.LabelAttachment, v.Name,
		image)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: hostname}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: layout.AttachmentVolume, MountPath: "/target"}}
	pod.Spec.Volumes = []corev1.Volume{{
		Name:         layout.AttachmentVolume,
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: v.PersistentVolumeClaimVolumeSource.DeepCopy()},
	}}
	if v.Type != nil && *v.Type == kubevirtv1.UtilityVolumeBackup {
		// A backup in pull mode has a token. One in push mode has no such Secret.
		holdpod.AddToken(&pod.Spec, holdpod.Token{
			Volume: layout.TunnelVolume, Path: "/tunnel", Secret: layout.TunnelSecret(v.Name), Key: podspec.TokenKey,
		})
	}
	return pod
}
