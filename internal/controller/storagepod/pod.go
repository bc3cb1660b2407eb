package storagepod

import (
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// LabelLook is on the pods that look into storages. A pod of LookDirectory has its storage mounted and may call nobody, and one of LookBucket
// calls a bucket and the STS of a role.
const (
	LabelLook     = layout.Prefix + "storage-look"
	LookDirectory = "true"
	LookBucket    = "bucket"
)

// containerName is the container of such a pod.
const containerName = "look"

// Image is what the pods are made of.
type Image struct {
	// Name is the image of the static varve binary.
	Name string
	// PullPolicy is empty for Kubernetes' default.
	PullPolicy corev1.PullPolicy
}

// Request is a look into a storage.
type Request struct {
	// Owner is the object that it is for, in Varve's namespace, and Kind its kind.
	Owner client.Object
	Kind  metav1.TypeMeta
	// Storage is where to look.
	Storage datamove.Storage
	// PasswordSecret has the password of the repository, in Varve's namespace; "": none is needed.
	PasswordSecret string
	// Look is what to look for.
	Look *repositoryaccess.Look
}

// podName returns the name of the pod for an object.
func podName(kind, name string) string {
	sum := sha256.Sum256([]byte(kind + "/" + name))
	return "look-" + hex.EncodeToString(sum[:10])
}

// newPod returns the pod for a request. It runs as the user of mover pods, to whom the files of repositories belong.
func newPod(namespace string, image Image, r *Request) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: podName(r.Kind.Kind, r.Owner.GetName()), Labels: map[string]string{LabelLook: kindOfLook(r.Storage)},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: r.Kind.APIVersion, Kind: r.Kind.Kind, Name: r.Owner.GetName(), UID: r.Owner.GetUID()}},
	}}
	pod.Spec = corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		ActiveDeadlineSeconds:         ptr.To(int64(Deadline.Seconds())),
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		NodeSelector:                  map[string]string{corev1.LabelOSStable: "linux"},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("64Mi"))}}}},
		Containers: []corev1.Container{{
			Name: containerName, Image: image.Name, ImagePullPolicy: image.PullPolicy,
			Command: []string{"/usr/bin/varve", "mover", "look"},
			Env:     []corev1.EnvVar{{Name: repositoryaccess.LookVariable, Value: r.Look.Encode()}},
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
	if r.PasswordSecret != "" {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "password", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: r.PasswordSecret, DefaultMode: ptr.To[int32](0o400), Items: []corev1.KeyToPath{{Key: datamove.PasswordKey, Path: datamove.PasswordKey}},
		}}})
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "password", MountPath: datamove.AccessDirectory, ReadOnly: true})
	}
	r.Storage.Mount(&pod.ObjectMeta, &pod.Spec)
	return pod
}

func kindOfLook(s datamove.Storage) string {
	if s.IsDirectory() {
		return LookDirectory
	}
	return LookBucket
}
