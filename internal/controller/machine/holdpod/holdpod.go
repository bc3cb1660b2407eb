// Package holdpod makes the pods that only have a volume on a node: an attachment pod brings the claim of a utility volume to the
// instance's node, and another pod brings the token of a migration to the node that the guest leaves.
package holdpod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// App is the value of the label kubevirt.io on these pods. Nothing listens in them, and they call nobody.
const App = "varve-attachment"

// nobody is the user that runs the container, which reads and writes nothing.
const nobody = 65534

// Image is what the pods are made of.
type Image struct {
	// Name is the image of the static varve binary.
	Name string
	// PullPolicy is empty for Kubernetes' default.
	PullPolicy corev1.PullPolicy
}

// New returns a pod of the instance with this name and one container, which sleeps. It has no privileges, runs on any node, and
// has no volumes yet. label is what its pods have besides the instance's.
func New(instance *kubevirtv1.VirtualMachineInstance, name, label, value string, image Image) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: instance.Namespace,
			Name:      name,
			Labels: map[string]string{
				layout.LabelApp: App, layout.LabelCreatedBy: string(instance.UID), layout.LabelVM: instance.Name, label: value,
			},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(instance, kubevirtv1.GroupVersion.WithKind("VirtualMachineInstance")),
			},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](5),
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
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
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("5m"), corev1.ResourceMemory: resource.MustParse("24Mi"),
				}},
				SecurityContext: &corev1.SecurityContext{
					Privileged:               ptr.To(false),
					AllowPrivilegeEscalation: ptr.To(false),
					ReadOnlyRootFilesystem:   ptr.To(true),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// Token is one key of a Secret that a pod brings to its node.
type Token struct {
	// Volume is the pod's volume, from which the handler reads the token, and Path is where the first container has it.
	Volume, Path string
	// Secret has the token under Key. It need not exist.
	Secret, Key string
}

// AddToken has a token brought to the pod's node, where the handler reads it from the kubelet's directory: the handler may not read
// Secrets. The first container has the volume because the kubelet leaves out what no container has.
func AddToken(pod *corev1.PodSpec, t Token) {
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: t.Volume, MountPath: t.Path, ReadOnly: true})
	pod.Volumes = append(pod.Volumes, corev1.Volume{
		Name: t.Volume,
		VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: t.Secret, Optional: ptr.To(true), DefaultMode: ptr.To[int32](0o400),
			Items: []corev1.KeyToPath{{Key: t.Key, Path: t.Key}},
		}},
	})
}
