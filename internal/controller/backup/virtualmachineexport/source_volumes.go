package virtualmachineexport

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/tracking"
)

// volumeSource serves the disks on claims.
type volumeSource struct {
	// vmName is the machine's name. Empty: the source is a claim.
	vmName string
	// vm and instance are the machine and its present run, if it has one.
	vm       *kubevirtv1.VirtualMachine
	instance *kubevirtv1.VirtualMachineInstance
	claims   []claim
}

// claim is a claim as it was found.
type claim struct {
	name string
	// object is nil if the claim does not exist.
	object *corev1.PersistentVolumeClaim
	// writers are the names of the pods that can write to the claim now, sorted.
	writers []string
}

// claimsOfMachine lists the claims of a machine's disks, each once.
func claimsOfMachine(vm *kubevirtv1.VirtualMachine) []string {
	var names []string
	if vm.Spec.Template == nil {
		return nil
	}
	for _, v := range vm.Spec.Template.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && !slices.Contains(names, v.PersistentVolumeClaim.ClaimName) {
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}

// writersOf returns the names of the pods that can write to the claim now, sorted. Export pods are not among them,
// because they mount claims read-only.
func writersOf(claim string, pods []corev1.Pod) []string {
	var names []string
	for i := range pods {
		pod := &pods[i]
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !ended && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim && !v.PersistentVolumeClaim.ReadOnly
		}) {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *volumeSource) machine() string { return s.vmName }

func (s *volumeSource) obstacle() *obstacle {
	if s.vmName != "" {
		if s.vm == nil {
			return waitFor(exportv1.ReasonSourceNotFound, "VirtualMachine %s does not exist.", s.vmName)
		}
		if len(s.claims) == 0 {
			return skip(exportv1.ReasonNoVolumes, "VirtualMachine %s has no disks on PersistentVolumeClaims.", s.vmName)
		}
	}
	o, _ := s.claimsReady()
	return o
}

func (s *volumeSource) claimsReady() (*obstacle, bool) {
	if len(s.claims) == 0 {
		return waitFor(exportv1.ReasonClaimNotFound, "There is no PersistentVolumeClaim to export."), true
	}
	for _, check := range []func(claim) *obstacle{s.missingClaim, s.unboundClaim, s.writtenClaim} {
		for _, c := range s.claims {
			if o := check(c); o != nil {
				return o, true
			}
		}
	}
	return s.runningMachine(), true
}

func (s *volumeSource) missingClaim(c claim) *obstacle {
	switch {
	case c.object == nil:
		return waitFor(exportv1.ReasonClaimNotFound, "PersistentVolumeClaim %s does not exist.", c.name)
	case c.object.DeletionTimestamp != nil:
		return waitFor(exportv1.ReasonClaimNotFound, "PersistentVolumeClaim %s is being deleted.", c.name)
	}
	return nil
}

func (s *volumeSource) unboundClaim(c claim) *obstacle {
	if c.object.Status.Phase == corev1.ClaimBound {
		return nil
	}
	return waitFor(exportv1.ReasonClaimNotBound, "PersistentVolumeClaim %s is not bound to a volume: check its events.", c.name)
}

func (s *volumeSource) writtenClaim(c claim) *obstacle {
	if len(c.writers) == 0 {
		return nil
	}
	more := ""
	if n := len(c.writers) - 1; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	o := waitFor(exportv1.ReasonClaimInUse, "Pod %s%s can write to PersistentVolumeClaim %s: the export waits until the pod has ended; stop the virtual machine that it runs.",
		c.writers[0], more, c.name)
	o.again, o.polls = retryInUse, true
	return o
}

// runningMachine is in the way before the machine has a pod, because it is about to have one.
func (s *volumeSource) runningMachine() *obstacle {
	if s.instance == nil || s.instance.Status.Phase.Final() {
		return nil
	}
	return waitFor(exportv1.ReasonClaimInUse, "VirtualMachine %s runs, or is about to (pod %s): the export waits until the machine is stopped.",
		s.vmName, instancepod.ActiveLauncher(s.instance))
}

func (s *volumeSource) ports() []corev1.ServicePort { return nil }

func (s *volumeSource) reachableUnready() bool { return false }

func (s *volumeSource) describe(config *podspec.Config) {
	config.Manifests = s.vmName != ""
	for _, c := range s.claims {
		path := podspec.ClaimFile(c.name)
		if tracking.IsBlock(c.object.Spec.VolumeMode) {
			path = podspec.ClaimDevice(c.name)
		}
		config.Volumes = append(config.Volumes, podspec.Volume{Name: c.name, Path: path})
	}
}

func (s *volumeSource) equip(pod *corev1.PodSpec) {
	container := &pod.Containers[0]
	for i, c := range s.claims {
		name := fmt.Sprintf("claim-%d", i) // a pod's volume names are shorter than claims' names may be
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.name, ReadOnly: true},
		}})
		if tracking.IsBlock(c.object.Spec.VolumeMode) {
			container.VolumeDevices = append(container.VolumeDevices, corev1.VolumeDevice{Name: name, DevicePath: podspec.ClaimDevice(c.name)})
		} else {
			container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: podspec.ClaimDirectory(c.name), ReadOnly: true})
		}
	}
}

func (s *volumeSource) addLinks(link *exportv1.VirtualMachineExportLink, base string) {
	for _, c := range s.claims {
		link.Volumes = append(link.Volumes, exportv1.VirtualMachineExportVolume{
			Name: c.name,
			Formats: []exportv1.VirtualMachineExportVolumeFormat{
				{Format: exportv1.FormatRaw, URL: base + podspec.RawPath(c.name)},
				{Format: exportv1.FormatGzip, URL: base + podspec.GzipPath(c.name)},
			},
		})
		link.Backups = append(link.Backups, endpointsOf(c.name, base))
	}
}
