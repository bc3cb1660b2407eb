// Package instancepod says which pods are an instance's: its launcher pods and its attachment pods. An instance has
// one launcher pod, and a second one while a migration moves its guest there. ActiveLauncher names the one that has
// the guest.
//
// A pod is recognized by its name, which follows from the instance's UID, and by its controller. An attachment pod
// is also recognized by the claim that it mounts, and a launcher pod that has lost its controller by its finalizer.
// Labels prove nothing, because anybody who may create pods in the namespace may set them. deploy/admission keeps
// others from making pods that an instance controls. So a pod for which these functions return true was made by
// Varve.
package instancepod

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

// ActiveLauncher returns the name of the launcher pod that has the instance's guest: the target pod of the last
// migration once that has completed, and the source pod until then.
func ActiveLauncher(instance *kubevirtv1.VirtualMachineInstance) string {
	s := instance.Status.MigrationState
	switch {
	case s == nil:
		return layout.LauncherPod(instance.Name, instance.UID)
	case s.Moved():
		return s.TargetPod
	default:
		return s.SourcePod
	}
}

// LauncherName returns the name that the pod must have to be a launcher pod of the instance: that of a migration's
// target pod if its label names a migration.
func LauncherName(pod *corev1.Pod, instance string, uid types.UID) string {
	if migration := pod.Labels[layout.LabelMigrationJob]; migration != "" {
		return layout.MigrationPod(instance, uid, types.UID(migration))
	}
	return layout.LauncherPod(instance, uid)
}

// IsLauncher reports whether the pod is a launcher pod of the instance.
func IsLauncher(pod *corev1.Pod, instance string, uid types.UID) bool {
	return pod.Name == LauncherName(pod, instance, uid) && controlledBy(pod, uid)
}

// IsMigrationSource reports whether the pod is the one that brings the migration's token to the node that the
// instance leaves.
func IsMigrationSource(pod *corev1.Pod, instance string, uid, migration types.UID) bool {
	return pod.Name == layout.MigrationSourcePod(instance, uid, migration) && controlledBy(pod, uid)
}

// IsOrphan reports whether the pod is a launcher pod of the instance and has lost its owner, for example by `kubectl
// delete vmi --cascade=orphan`. The finalizer proves it: deploy/admission does not let others put it on a pod, any
// more than the owner. Who controls the pod by now proves nothing: a ReplicaSet adopts any ownerless pod that its
// selector matches, and a launcher pod has its machine's labels.
func IsOrphan(pod *corev1.Pod, instance string, uid types.UID) bool {
	return uid != "" && pod.Name == LauncherName(pod, instance, uid) && !controlledBy(pod, uid) &&
		slices.Contains(pod.Finalizers, layout.FinalizerLauncher)
}

// IsAttachment reports whether the pod is the one that brings the utility volume to the instance's node. See
// HoldsClaim for what it brings.
func IsAttachment(pod *corev1.Pod, instance string, uid types.UID, utilityVolume string) bool {
	return pod.Name == layout.AttachmentPod(instance, uid, utilityVolume) && controlledBy(pod, uid)
}

// controlledBy reports whether the pod's controller is the instance with this UID.
func controlledBy(pod *corev1.Pod, uid types.UID) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || uid == "" || owner.UID != uid || owner.Kind != "VirtualMachineInstance" {
		return false
	}
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && gv.Group == kubevirtv1.GroupVersion.Group
}

// HoldsClaim reports whether an attachment pod mounts the claim under the volume name from which the handler takes
// it.
func HoldsClaim(pod *corev1.Pod, claim string) bool {
	found := false
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Name != layout.AttachmentVolume {
			continue
		}
		if v.PersistentVolumeClaim == nil || v.PersistentVolumeClaim.ClaimName != claim {
			return false
		}
		found = true
	}
	return found
}

// HasEnded reports whether all containers of a pod have ended for good, as its kubelet says.
func HasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
