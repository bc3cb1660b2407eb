package datamove

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/layout"
)

// LabelLook is on the pods that look into storages or serve them. A pod of LookDirectory has its storage mounted and may call nobody, and one
// of LookBucket calls a bucket and the STS of a role.
const (
	LabelLook     = layout.Prefix + "storage-look"
	LookDirectory = "true"
	LookBucket    = "bucket"
)

const (
	// ServeStorage is the command of a pod that serves a directory of its storage to one command of a user, on StoragePort of its loopback.
	// --directory follows it.
	ServeStorage = "serve-storage"
	StoragePort  = 8480
	// ServeIdle is how long nobody may ask before such a pod ends.
	ServeIdle = 3 * time.Minute
)

// PodImage is the image of the static varve binary.
type PodImage struct {
	Name string
	// PullPolicy is empty for Kubernetes' default.
	PullPolicy corev1.PullPolicy
}

// NewPod returns a pod that has the storage, a directory /tmp, and nothing else: no account, no privileges and no Secret. Its container runs
// `varve mover` with a command, as the user of mover pods, to whom the files of repositories belong.
func (s Storage) NewPod(image PodImage, command string) corev1.PodTemplateSpec {
	pod := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{LabelLook: s.kindOfLook()}}}
	pod.Spec = corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		NodeSelector:                  map[string]string{corev1.LabelOSStable: "linux"},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("64Mi"))}}}},
		Containers: []corev1.Container{{
			Name: command, Image: image.Name, ImagePullPolicy: image.PullPolicy,
			Command: []string{"/usr/bin/varve", "mover", command},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
			SecurityContext: &corev1.SecurityContext{
				Privileged: ptr.To(false), AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		}},
	}
	s.Mount(&pod.ObjectMeta, &pod.Spec)
	return pod
}

func (s Storage) kindOfLook() string {
	if s.IsDirectory() {
		return LookDirectory
	}
	return LookBucket
}
