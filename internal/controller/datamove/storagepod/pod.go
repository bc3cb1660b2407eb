package storagepod

import (
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

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

// containerName is the container of such a pod, and what it runs: `varve mover look`.
const containerName = "look"

// podName returns the name of the pod for an object.
func podName(kind, name string) string {
	sum := sha256.Sum256([]byte(kind + "/" + name))
	return "look-" + hex.EncodeToString(sum[:10])
}

// newPod returns the pod for a request.
func newPod(namespace string, image datamove.PodImage, r *Request) *corev1.Pod {
	template := r.Storage.NewPod(image, containerName)
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name = namespace, podName(r.Kind.Kind, r.Owner.GetName())
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: r.Kind.APIVersion, Kind: r.Kind.Kind, Name: r.Owner.GetName(), UID: r.Owner.GetUID()}}
	pod.Spec.ActiveDeadlineSeconds = ptr.To(int64(Deadline.Seconds()))
	c := &pod.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: repositoryaccess.LookVariable, Value: r.Look.Encode()}}
	if r.PasswordSecret != "" {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "password", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: r.PasswordSecret, DefaultMode: ptr.To[int32](0o400), Items: []corev1.KeyToPath{{Key: datamove.PasswordKey, Path: datamove.PasswordKey}},
		}}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "password", MountPath: datamove.AccessDirectory, ReadOnly: true})
	}
	return pod
}
