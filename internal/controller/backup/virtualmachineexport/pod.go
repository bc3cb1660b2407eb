package virtualmachineexport

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
)

// AppExporter is the value of the label kubevirt.io on what belongs to an export.
const AppExporter = "virt-exporter"

// stopSeconds is how long an export pod has to end after its deletion.
const stopSeconds = 5

// Image is what export pods are made of.
type Image struct {
	// Name is the image of the static varve binary.
	Name string
	// PullPolicy is empty for Kubernetes' default.
	PullPolicy corev1.PullPolicy
}

// configOf returns what the export's pod serves. The source has no obstacle.
func configOf(export *exportv1.VirtualMachineExport, source sourceHandler) string {
	config := podspec.Config{Namespace: export.Namespace, Name: export.Name, UID: export.UID}
	source.describe(&config)
	return config.Encode()
}

// exportPod returns the pod that serves an export. It has no privileges and no credentials but its own. The kubelet
// restarts its container, so the pod ends only if the node or somebody else ends it.
func exportPod(export *exportv1.VirtualMachineExport, source sourceHandler, tokenSecret string, image Image) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: childMeta(export, podspec.Pod(export.Name)),
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](stopSeconds),
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](podspec.User), RunAsGroup: ptr.To[int64](podspec.Group),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{exportContainer(image)},
		},
	}
	container := &pod.Spec.Containers[0]
	container.Env = []corev1.EnvVar{{Name: podspec.ConfigVariable, Value: configOf(export, source)}}
	mountSecret(&pod.Spec, "certificate", podspec.CertificateDirectory, podspec.CertificateSecret(export.Name), corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	mountSecret(&pod.Spec, "token", podspec.TokenDirectory, tokenSecret, podspec.TokenKey)
	if source.machine() != "" {
		mountSecret(&pod.Spec, "manifests", podspec.ManifestsDirectory, podspec.ManifestsSecret(export.Name),
			podspec.ManifestsKey(podspec.InternalLink), podspec.ManifestsKey(podspec.ExternalLink))
	}
	source.equip(&pod.Spec)
	return pod
}

func exportContainer(image Image) corev1.Container {
	return corev1.Container{
		Name:            podspec.Container,
		Image:           image.Name,
		ImagePullPolicy: image.PullPolicy,
		Command:         podspec.Command(),
		Ports:           []corev1.ContainerPort{{Name: "https", ContainerPort: podspec.HTTPSPort}},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Scheme: corev1.URISchemeHTTPS, Path: podspec.ReadinessPath, Port: intstr.FromInt32(podspec.HTTPSPort),
			}},
			PeriodSeconds: 2, TimeoutSeconds: 5, FailureThreshold: 3,
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(podspec.CPURequest), corev1.ResourceMemory: resource.MustParse(podspec.MemoryRequest)},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(podspec.CPULimit), corev1.ResourceMemory: resource.MustParse(podspec.MemoryLimit)},
		},
		SecurityContext: &corev1.SecurityContext{
			Privileged:               ptr.To(false),
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// mountSecret mounts these keys of a Secret at path, and no others.
func mountSecret(pod *corev1.PodSpec, volume, path, secret string, keys ...string) {
	source := &corev1.SecretVolumeSource{SecretName: secret, DefaultMode: ptr.To[int32](0o444)}
	for _, key := range keys {
		source.Items = append(source.Items, corev1.KeyToPath{Key: key, Path: key})
	}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{Secret: source}})
	pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: path, ReadOnly: true})
}

// childMeta returns the metadata of an object that belongs to an export.
func childMeta(export *exportv1.VirtualMachineExport, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:       export.Namespace,
		Name:            name,
		Labels:          map[string]string{layout.LabelApp: AppExporter, layout.LabelExport: string(export.UID)},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(export, exportv1.GroupVersion.WithKind("VirtualMachineExport"))},
	}
}

// belongsTo reports whether the controller made an object for this export. The name decides nothing: an export of the
// same name may have been deleted a moment ago.
func belongsTo(o metav1.Object, export *exportv1.VirtualMachineExport) bool {
	owner := metav1.GetControllerOfNoCopy(o)
	return owner != nil && owner.UID == export.UID && owner.Kind == "VirtualMachineExport" &&
		strings.HasPrefix(owner.APIVersion, exportv1.GroupVersion.Group+"/") && o.GetLabels()[layout.LabelExport] == string(export.UID)
}
