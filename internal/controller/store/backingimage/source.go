package backingimage

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/controller/store/imagevolume"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/store/handover"
	"github.com/varvebackup/varve/internal/store/names"
)

const (
	// AppSource is the value of the label kubevirt.io on what a source has.
	AppSource = "varve-image-source"
	// LabelImage is on what a source has; its value is status.uuid of the image.
	LabelImage = layout.Prefix + "image"
	// LabelSource is on what a source has; its value is spec.sourceType of the image. A network policy goes by it.
	LabelSource = layout.Prefix + "image-source"

	// SourceDevice is the block device in the source pod.
	SourceDevice = "/dev/image"

	sourceContainer = "source"
	scratchVolume   = "scratch"
	imageVolume     = "image"

	// uploadDeadlines is how many times longer than another source an upload may take.
	uploadDeadlines = 7
)

func sourceMeta(image *longhornv1.BackingImage) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: image.Namespace, Name: names.SourceHandle(image.Status.UUID),
		Labels: map[string]string{
			layout.LabelApp: AppSource, LabelImage: image.Status.UUID,
			LabelSource: string(image.Spec.SourceType),
		},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(image, longhornv1.GroupVersion.WithKind("BackingImage")),
		},
	}
}

func newSourceClaim(image *longhornv1.BackingImage) *corev1.PersistentVolumeClaim {
	return imagevolume.NewClaim(sourceMeta(image), handover.DeviceBytes)
}

// newSourceVolume returns the PersistentVolume of a source on a node, for its claim. The image's finalizer deletes it.
func newSourceVolume(
	image *longhornv1.BackingImage, claim *corev1.PersistentVolumeClaim, node string,
) *corev1.PersistentVolume {
	return imagevolume.NewVolume(sourceMeta(image), handover.DeviceBytes, claim, node,
		map[string]string{names.ContextDisk: image.Status.V2FirstCopyDisk})
}

// describeSource tells the source pod what to make the first copy of.
func describeSource(image *longhornv1.BackingImage) handover.Source {
	if image.Spec.SourceType == longhornv1.SourceUpload {
		return handover.Source{Type: handover.TypeUpload, Image: image.Name}
	}
	return handover.Source{
		Type: handover.TypeDownload, URL: string(image.Spec.SourceParameters[longhornv1.ParameterURL]),
		CACertificate: string(image.Spec.SourceParameters[longhornv1.ParameterCACertificate]),
	}
}

// deadlineOf returns how long a source pod may run. An upload may take longer, because a user's line may be slow, and
// what was uploaded would be lost. Its pod ends by itself when no byte comes.
func (o *Options) deadlineOf(image *longhornv1.BackingImage) time.Duration {
	if image.Spec.SourceType == longhornv1.SourceUpload {
		return uploadDeadlines * o.SourceDeadline
	}
	return o.SourceDeadline
}

// newSourcePod returns the pod that makes the first copy. It parses what strangers made, so it has the block device and
// nothing else: no account, no capability, no file system that it can write but its scratch.
func newSourcePod(image *longhornv1.BackingImage, o *Options) *corev1.Pod {
	source := describeSource(image)
	m := sourceMeta(image)
	return &corev1.Pod{
		ObjectMeta: m,
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever, // an attempt that failed begins on a new head
			ActiveDeadlineSeconds:        ptr.To(int64(o.deadlineOf(image).Seconds())),
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{
				// The device belongs to root, and no capability lets anybody else open it.
				RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: sourceContainer, Image: o.LauncherImage, ImagePullPolicy: o.ImagePullPolicy,
				Command:       []string{"/usr/bin/varve", "store", "source"},
				Env:           []corev1.EnvVar{{Name: handover.SourceVariable, Value: source.String()}},
				VolumeDevices: []corev1.VolumeDevice{{Name: imageVolume, DevicePath: SourceDevice}},
				VolumeMounts:  []corev1.VolumeMount{{Name: scratchVolume, MountPath: "/tmp"}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi"),
					},
					Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")},
				},
				SecurityContext: &corev1.SecurityContext{
					Privileged: ptr.To(false), AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: imageVolume, VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: m.Name},
				}},
				{Name: scratchVolume, VolumeSource: corev1.VolumeSource{
					EmptyDir: &corev1.EmptyDirVolumeSource{
						SizeLimit: ptr.To(resource.MustParse("16Mi")), // a socket
					},
				}},
			},
		},
	}
}
