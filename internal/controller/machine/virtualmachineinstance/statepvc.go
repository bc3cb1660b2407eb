package virtualmachineinstance

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/stateclaim"
	"github.com/varvebackup/varve/internal/tracking"
)

// stateClaims finds the instance's state claims among its claims.
func stateClaims(instance *kubevirtv1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim) stateclaim.Claims {
	var machine types.UID
	if owner := metav1.GetControllerOf(instance); owner != nil {
		machine = owner.UID
	}
	return stateclaim.Find(instance.Name, machine, claims)
}

// mountedClaims returns the claims without the state claims that the launcher pod does not mount.
func mountedClaims(instance *kubevirtv1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim) map[string]*corev1.PersistentVolumeClaim {
	state, names := stateClaims(instance, claims), layout.StatePVCs(instance.Name)
	mounted := maps.Clone(claims)
	maps.DeleteFunc(mounted, func(name string, _ *corev1.PersistentVolumeClaim) bool {
		return slices.Contains(names, name) && !state.Mounts(name)
	})
	return mounted
}

// TrackedDiskBytes returns the sizes in bytes of the instance's disks that can be tracked. Every claim of the instance's
// disks must exist.
func TrackedDiskBytes(instance *kubevirtv1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim) []int64 {
	names := map[string]string{}
	for _, v := range instance.Spec.Volumes {
		names[v.Name] = v.PersistentVolumeClaim.ClaimName
	}
	var sizes []int64
	for _, v := range tracking.EligibleVolumes(&instance.Spec) {
		sizes = append(sizes, tracking.ClaimBytes(claims[names[v]]))
	}
	return sizes
}

// whyNoStateClaim says why a tracked instance has no claim with room for its overlays yet. Package changedblocktracking sees
// to it that it gets one. It returns nil if there is one.
func whyNoStateClaim(instance *kubevirtv1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim) *obstacle {
	state := stateClaims(instance, claims)
	target := state.Target()
	if target == nil {
		return &obstacle{ReasonStateClaim, fmt.Sprintf("PersistentVolumeClaim %s for the overlays of the tracked disks is being created.", layout.StatePVC(instance.Name))}
	}
	need := tracking.StateClaimSize(TrackedDiskBytes(instance, claims))
	if stateclaim.HasRoom(target, need) {
		return nil
	}
	small := fmt.Sprintf("PersistentVolumeClaim %s is too small for the overlays of the tracked disks, which need %s", target.Name, resource.NewQuantity(need, resource.BinarySI))
	growth := stateclaim.GrowthOf(instance.Annotations)
	deadline := growth.Deadline().UTC().Format(time.RFC3339)
	switch growth.Step {
	case stateclaim.StepExpand:
		return &obstacle{ReasonStateClaimExpanding, fmt.Sprintf("%s: it is being expanded. If that takes until %s, the overlays move to a larger claim.%s",
			small, deadline, quoted("The storage says", stateclaim.ExpansionProblem(target)))}
	case stateclaim.StepMove:
		return &obstacle{ReasonStateClaimMoving, fmt.Sprintf("%s: a larger one is being created, which the overlays move to. If that takes until %s, the old one is deleted first, and the next backup is full.%s",
			small, deadline, quoted("So far", growth.Refusal))}
	case stateclaim.NoStep:
	}
	return &obstacle{ReasonStateClaim, small + "."}
}

// unboundSuccessor returns an obstacle while the claim that the overlays move to waits for its provisioner. If it never
// gets a volume, the instance must not have a launcher pod that waits for it. A claim whose volume is made for the pod is
// no obstacle.
func unboundSuccessor(instance *kubevirtv1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim, unbound []unboundClaim) *obstacle {
	if !Tracked(instance) {
		return nil
	}
	successor := stateClaims(instance, claims).Successor
	if successor == nil || !slices.Contains(unbound, unboundClaim{Name: successor.Name, Immediate: true}) {
		return nil
	}
	return &obstacle{ReasonStateClaimMoving, fmt.Sprintf(
		"PersistentVolumeClaim %s, which the overlays move to, has no volume yet: check its events. If that takes until %s, the old claim is deleted first, and the next backup is full.",
		successor.Name, stateclaim.GrowthOf(instance.Annotations).Deadline().UTC().Format(time.RFC3339))}
}

// quoted returns a sentence that quotes what somebody said, for the end of a message.
func quoted(before, said string) string {
	if said == "" {
		return ""
	}
	return " " + before + ": " + said
}
