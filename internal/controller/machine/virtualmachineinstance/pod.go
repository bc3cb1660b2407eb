package virtualmachineinstance

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/tracking"
)

// computeContainer is the container that runs the launcher.
const computeContainer = "compute"

// stopMargin is what a launcher pod's grace period has beyond the guest's, in seconds: time to kill the guest, to
// close its overlays and to exit.
const stopMargin = 30

// Images are what launcher pods are made of.
type Images struct {
	// Launcher is the image of varve-launcher.
	Launcher string
	// Varve is the image of the static varve binary.
	Varve string
	// PullPolicy applies to both. Empty: Kubernetes' default.
	PullPolicy corev1.PullPolicy
}

// podInput is everything that a launcher pod depends on.
type podInput struct {
	Instance *kubevirtv1.VirtualMachineInstance
	// Claims are the claims of the instance's volumes, and the state claims of a tracked instance, by name; all of them exist.
	Claims map[string]*corev1.PersistentVolumeClaim
	Images Images
	// Configuration is the KubeVirt object, or nil.
	Configuration *kubevirtv1.KubeVirt
	// UseEmulation runs the guest without /dev/kvm.
	UseEmulation bool
}

// Tracked reports whether the instance's disks have overlays, and therefore whether it has a state claim.
func Tracked(instance *kubevirtv1.VirtualMachineInstance) bool {
	return instance.Annotations[layout.AnnotationTracking] == "true"
}

// launcherPod returns the launcher pod of an instance. It is unprivileged: a guest that breaks out finds itself an
// ordinary user in a container without credentials, without devices of the host, without capabilities and with a
// read-only root file system.
//
// It has no user namespace (hostUsers: false): Kubernetes refuses block volumes in pods with one, and the target claim
// that the handler mounts into the running pod would not be mapped to the pod's users.
func launcherPod(in podInput) *corev1.Pod {
	instance := in.Instance
	grace := ptr.Deref(instance.Spec.TerminationGracePeriodSeconds, defaultGrace) + stopMargin
	r := &renderer{podInput: in}
	r.addDisks()
	r.addDirectories()
	r.privateDirectory()
	r.kernelBoot()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       instance.Namespace,
			Name:            layout.LauncherPod(instance.Name, instance.UID),
			Labels:          podLabels(instance),
			Annotations:     freezeHooks(instance, in.Configuration),
			Finalizers:      []string{layout.FinalizerLauncher},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(instance, kubevirtv1.GroupVersion.WithKind("VirtualMachineInstance"))},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			SecurityContext:               podSecurityContext(r.devices),
			NodeSelector:                  maps.Clone(instance.Spec.NodeSelector),
			Tolerations:                   instance.DeepCopy().Spec.Tolerations,
			ImagePullSecrets:              r.pullSecrets,
			InitContainers:                r.inits,
			Containers: []corev1.Container{{
				Name:                     computeContainer,
				Image:                    in.Images.Launcher,
				ImagePullPolicy:          in.Images.PullPolicy,
				Command:                  []string{"/usr/bin/varve-launcher"},
				Env:                      []corev1.EnvVar{{Name: "LIBVIRT_DEFAULT_URI", Value: layout.LibvirtURI}}, // for virsh
				Resources:                launcherResources(in),
				VolumeMounts:             r.mounts,
				VolumeDevices:            r.devices,
				SecurityContext:          containerSecurityContext(),
				TerminationMessagePath:   corev1.TerminationMessagePathDefault,
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
			Volumes: r.volumes,
		},
	}
}

// podLabels returns the instance's labels and those by which its pods are found.
func podLabels(instance *kubevirtv1.VirtualMachineInstance) map[string]string {
	l := maps.Clone(instance.Labels)
	if l == nil {
		l = map[string]string{}
	}
	delete(l, layout.LabelNodeName)
	delete(l, layout.LabelAttachment)
	delete(l, layout.LabelMigrationJob)
	l[layout.LabelApp] = AppLauncher
	l[layout.LabelCreatedBy] = string(instance.UID)
	l[layout.LabelVM] = instance.Name
	return l
}

// AppLauncher is the value of the label kubevirt.io on launcher pods.
const AppLauncher = "virt-launcher"

// diskGroup owns block devices on Linux systems: Debian and Red Hat both call it disk. Where the container runtime
// does not give a container's devices to the container's user, it leaves them to the owners that they have on the node.
// The group opens nothing else: a container has no other devices.
const diskGroup = 6

// podSecurityContext returns what all containers of the pod run as.
func podSecurityContext(devices []corev1.VolumeDevice) *corev1.PodSecurityContext {
	c := &corev1.PodSecurityContext{
		RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](layout.LauncherUser), RunAsGroup: ptr.To[int64](layout.LauncherGroup),
		// The kubelet opens what is on the claims for this group.
		FSGroup:        ptr.To[int64](layout.LauncherGroup),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if len(devices) > 0 {
		c.SupplementalGroups = []int64{diskGroup}
	}
	return c
}

// containerSecurityContext returns the security context of every container of the pod. None needs a capability: libvirt
// and QEMU run as the user whom the claims are open to, and nothing is mounted, bound or given away in the pod.
func containerSecurityContext() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		Privileged:               ptr.To(false),
		AllowPrivilegeEscalation: ptr.To(false),
		ReadOnlyRootFilesystem:   ptr.To(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// renderer collects the parts of a pod.
type renderer struct {
	podInput
	volumes     []corev1.Volume
	mounts      []corev1.VolumeMount
	devices     []corev1.VolumeDevice
	inits       []corev1.Container
	pullSecrets []corev1.LocalObjectReference
}

// addDisks puts the claims of the instance's volumes where the launcher expects them.
func (r *renderer) addDisks() {
	for i, v := range r.Instance.Spec.Volumes {
		source := v.PersistentVolumeClaim.PersistentVolumeClaimVolumeSource
		// A pod's volume names must be shorter than ours may be, and the names sockets and utility are taken.
		name := fmt.Sprintf("disk-%d", i)
		r.volumes = append(r.volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source.DeepCopy()}})
		if tracking.IsBlock(r.Claims[source.ClaimName].Spec.VolumeMode) {
			r.devices = append(r.devices, corev1.VolumeDevice{Name: name, DevicePath: layout.DiskDevice(v.Name)})
			continue
		}
		r.mounts = append(r.mounts, corev1.VolumeMount{Name: name, MountPath: layout.DisksDir + "/" + v.Name, ReadOnly: source.ReadOnly})
	}
}

// addDirectories adds the state claim and the directories that the handler shares with the launcher.
func (r *renderer) addDirectories() {
	if Tracked(r.Instance) {
		state := stateClaims(r.Instance, r.Claims)
		r.addStateClaim("state", state.Target(), layout.StateDir)
		if state.Successor != nil {
			r.addStateClaim("previous-state", state.Current, layout.PreviousStateDir)
		}
	}
	r.volumes = append(r.volumes, emptyDir(layout.SocketsVolume), emptyDir(layout.UtilityVolume))
	r.mounts = append(r.mounts,
		corev1.VolumeMount{Name: layout.SocketsVolume, MountPath: layout.SocketsDir},
		corev1.VolumeMount{
			Name: layout.UtilityVolume, MountPath: layout.UtilityDir,
			// What the handler mounts below it on the node appears in the running container.
			MountPropagation: ptr.To(corev1.MountPropagationHostToContainer),
		})
}

func (r *renderer) addStateClaim(volume string, claim *corev1.PersistentVolumeClaim, path string) {
	r.volumes = append(r.volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
	}})
	r.mounts = append(r.mounts, corev1.VolumeMount{Name: volume, MountPath: path})
}

// privateVolume is the volume of layout.PrivateDir.
const privateVolume = "private"

// privateDirectory keeps libvirt's files in memory. libvirt writes and syncs them a dozen times while it begins a
// backup, with the guest frozen. On a node's busy disk that took more than a second.
func (r *renderer) privateDirectory() {
	limit := resource.MustParse("64Mi")
	r.volumes = append(r.volumes, corev1.Volume{Name: privateVolume, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &limit},
	}})
	r.mounts = append(r.mounts, corev1.VolumeMount{Name: privateVolume, MountPath: layout.PrivateDir})
}

func emptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// Where the init containers of a kernel boot find varve.
const (
	varveBinary = "/usr/bin/varve"
	toolsDir    = "/run/varve/tools"
	toolsVolume = "tools"
	kernel      = "kernel"
)

// kernelBoot copies kernel and initrd out of their image. The image needs neither a shell nor a file system layout:
// the first init container brings the static varve binary, and the second runs it inside the image.
func (r *renderer) kernelBoot() {
	firmware := r.Instance.Spec.Domain.Firmware
	if firmware == nil || firmware.KernelBoot == nil || firmware.KernelBoot.Container == nil {
		return
	}
	c := firmware.KernelBoot.Container
	copyCommand := []string{toolsDir + "/varve", "internal", "kernel-boot-copy"}
	if c.KernelPath != "" {
		copyCommand = append(copyCommand, "--kernel", c.KernelPath)
	}
	if c.InitrdPath != "" {
		copyCommand = append(copyCommand, "--initrd", c.InitrdPath)
	}
	copyCommand = append(copyCommand, "--to", layout.KernelDir)
	r.inits = []corev1.Container{
		r.addInitContainer("install-varve", r.Images.Varve, r.Images.PullPolicy, []string{varveBinary, "internal", "install-self", toolsDir},
			corev1.VolumeMount{Name: toolsVolume, MountPath: toolsDir}),
		r.addInitContainer("kernel-boot", c.Image, c.ImagePullPolicy, copyCommand,
			corev1.VolumeMount{Name: toolsVolume, MountPath: toolsDir, ReadOnly: true}, corev1.VolumeMount{Name: kernel, MountPath: layout.KernelDir}),
	}
	r.volumes = append(r.volumes, emptyDir(toolsVolume), emptyDir(kernel))
	r.mounts = append(r.mounts, corev1.VolumeMount{Name: kernel, MountPath: layout.KernelDir, ReadOnly: true})
	if c.ImagePullSecret != "" {
		r.pullSecrets = []corev1.LocalObjectReference{{Name: c.ImagePullSecret}}
	}
}

func (r *renderer) addInitContainer(name, image string, pull corev1.PullPolicy, command []string, mounts ...corev1.VolumeMount) corev1.Container {
	return corev1.Container{
		Name: name, Image: image, ImagePullPolicy: pull, Command: command, VolumeMounts: mounts,
		Resources:                initResources(),
		SecurityContext:          containerSecurityContext(),
		TerminationMessagePath:   corev1.TerminationMessagePathDefault,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}
