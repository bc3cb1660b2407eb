package virtualmachineinstance

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// Reasons of the condition LiveMigratable. The first is KubeVirt's.
const (
	// ReasonDisksNotMigratable: two nodes cannot have a claim of the instance at a time.
	ReasonDisksNotMigratable = "DisksNotLiveMigratable"
	// ReasonStateClaimMoves: the overlays move to another claim.
	ReasonStateClaimMoves = "StateClaimMoving"
)

// ClaimNames returns the names of the claims that WhyNotMigratable needs.
func ClaimNames(instance *kubevirtv1.VirtualMachineInstance) []string { return claimNames(instance) }

// WhyNotMigratable says why the instance's guest cannot move to another node, and what to do. Both are empty if it
// can. claims are those of ClaimNames that exist.
func WhyNotMigratable(
	instance *kubevirtv1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim,
) (reason, message string) {
	if o := whyNotMigratable(instance, claims); o != nil {
		return o.Reason, o.Message
	}
	return "", ""
}

func whyNotMigratable(
	instance *kubevirtv1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim,
) *obstacle {
	for _, v := range instance.Spec.Volumes {
		name := v.PersistentVolumeClaim.ClaimName
		switch claim := claims[name]; {
		case claim == nil:
			return &obstacle{ReasonDisksNotMigratable, fmt.Sprintf("PersistentVolumeClaim %s of volume %s does not exist.", name,
				v.Name)}
		case v.PersistentVolumeClaim.ReadOnly && isShared(claim, corev1.ReadOnlyMany):
		case !isShared(claim, corev1.ReadWriteMany):
			return &obstacle{ReasonDisksNotMigratable, fmt.Sprintf(
				"PersistentVolumeClaim %s of volume %s is not ReadWriteMany, so that two nodes cannot have it at a time. To "+
					"make the machine migratable, copy the disk to a ReadWriteMany claim, or stop the machine and start it on the "+
					"other node.",
				name, v.Name)}
		}
	}
	if !Tracked(instance) {
		return nil
	}
	switch state := stateClaims(instance, claims); {
	case state.Current == nil:
		return &obstacle{ReasonDisksNotMigratable, "The PersistentVolumeClaim with the overlays of the tracked disks does " +
			"not exist."}
	case state.Successor != nil:
		return &obstacle{ReasonStateClaimMoves, fmt.Sprintf("The overlays of the tracked disks move from "+
			"PersistentVolumeClaim %s to %s; restart the machine to finish that.", state.Current.Name, state.Successor.Name)}
	case !isShared(state.Current, corev1.ReadWriteMany):
		return &obstacle{ReasonDisksNotMigratable, fmt.Sprintf(
			"PersistentVolumeClaim %s, which has the overlays of the tracked disks, is not ReadWriteMany. Varve makes it "+
				"ReadWriteMany if the disks are: stop the machine, delete this claim, and start the machine. Its next backup is "+
				"full.",
			state.Current.Name)}
	}
	return nil
}

func isShared(claim *corev1.PersistentVolumeClaim, mode corev1.PersistentVolumeAccessMode) bool {
	return slices.Contains(claim.Spec.AccessModes, mode)
}
