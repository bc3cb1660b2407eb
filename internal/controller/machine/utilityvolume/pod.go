package utilityvolume

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
)

const (
	// AppAttachment is the value of the label kubevirt.io on attachment pods.
	AppAttachment = "varve-attachment"
	// nobody is the user that runs the container, which reads and writes nothing.
	nobody = 65534
)

// Image is what attachment pods are made of.
type Image struct {
	// Name is the image of the static varve binary.
	Name string
	// PullPolicy is empty for Kubernetes' default.
	PullPolicy corev1.PullPolicy
}

// attachmentPod returns the pod that keeps a utility volume on the node with this hostname. The pod goes through the
// scheduler, which binds a claim that waits for its first consumer. It has no privileges: all it does is to have
// the claim mounted.
func attachmentPod(instance *kubevirtv1.VirtualMachineInstance, v kubevirtv1.UtilityVolume, hostname string, image Image) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: instance.Namespace,
			Name:      layout.AttachmentPod(instance.Name, instance.UID, v.Name),
			Labels: map[string]string{
				layout.LabelApp:        AppAttachment,
				layout.LabelCreatedBy:  string(instance.UID),
				layout.LabelVM:         instance.Name,
				layout.LabelAttachment: v.Name,
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(instance, kubevirtv1.GroupVersion.WithKind("VirtualMachineInstance"))},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](5),
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			NodeSelector:                  map[string]string{corev1.LabelHostname: hostname},
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](nobody), RunAsGroup: ptr.To[int64](nobody),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:            "hold",
				Image:           image.Name,
				ImagePullPolicy: image.PullPolicy,
				Command:         []string{"/usr/bin/varve", "internal", "hold"},
				VolumeMounts:    []corev1.VolumeMount{{Name: layout.AttachmentVolume, MountPath: "/target"}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5m"), corev1.ResourceMemory: resource.MustParse("24Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					Privileged:               ptr.To(false),
					AllowPrivilegeEscalation: ptr.To(false),
					ReadOnlyRootFilesystem:   ptr.To(true),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
			Volumes: []corev1.Volume{{
				Name:         layout.AttachmentVolume,
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: v.PersistentVolumeClaimVolumeSource.DeepCopy()},
			}},
		},
	}
	if v.Type != nil && *v.Type == kubevirtv1.UtilityVolumeBackup {
		addTunnelToken(&pod.Spec, v.Name)
	}
	return pod
}

// addTunnelToken has the token of a backup in pull mode brought to the node, where the handler reads it from the kubelet's
// directory: the handler may not read Secrets. A backup in push mode has no such Secret. The container has the volume
// because the kubelet leaves out what no container has; it cannot read the token.
func addTunnelToken(pod *corev1.PodSpec, utilityVolume string) {
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: layout.TunnelVolume, MountPath: "/tunnel", ReadOnly: true})
	pod.Volumes = append(pod.Volumes, corev1.Volume{
		Name: layout.TunnelVolume,
		VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: layout.TunnelSecret(utilityVolume), Optional: ptr.To(true), DefaultMode: ptr.To[int32](0o400),
			Items: []corev1.KeyToPath{{Key: podspec.TokenKey, Path: podspec.TokenKey}},
		}},
	})
}
