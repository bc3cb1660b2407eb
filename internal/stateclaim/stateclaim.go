// Package stateclaim knows the claims that hold a machine's overlays.
//
// A machine has one such claim. When it becomes too small and cannot be expanded, there are two for a while: the next
// launcher pod mounts both, and the launcher moves the overlays before it starts the guest. The second claim names the
// first one by UID, and the first one is deleted when the guest runs. Nothing else says which claim is the right one, so
// that nothing can contradict the claims. At any moment an overlay is valid in one of them at most.
//
// The package is pure: callers read and write the claims.
package stateclaim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/tracking"
)

// Claims are the claims of one machine that exist and are not being deleted.
type Claims struct {
	// Current has the overlays. It is nil if there is no claim.
	Current *corev1.PersistentVolumeClaim
	// Successor is the claim that the overlays move to at the machine's next start, or have moved to while Current still
	// exists. It is nil if they stay.
	Successor *corev1.PersistentVolumeClaim
	// Going are claims that are being deleted: their names are still taken.
	Going []string
}

// Find finds a machine's claims among those with the names layout.StatePVCs, which may be absent. machine is the UID of
// the VirtualMachine.
func Find(vm string, machine types.UID, claims map[string]*corev1.PersistentVolumeClaim) Claims {
	var found Claims
	var there []*corev1.PersistentVolumeClaim
	for _, name := range layout.StatePVCs(vm) {
		switch claim := claims[name]; {
		case claim == nil:
		case claim.DeletionTimestamp != nil:
			found.Going = append(found.Going, name)
		default:
			there = append(there, claim)
		}
	}
	if len(there) == 2 {
		for i, successor := range there {
			if from := there[1-i]; movesFrom(successor, from) && owns(machine, successor) == owns(machine, from) {
				found.Current, found.Successor = from, successor
				return found
			}
		}
		// They have nothing to do with each other. Somebody else made one of them, or made it anew.
		slices.SortStableFunc(there, func(a, b *corev1.PersistentVolumeClaim) int {
			if owns(machine, a) == owns(machine, b) {
				return 0
			}
			if owns(machine, a) {
				return -1
			}
			return 1
		})
	}
	if len(there) > 0 {
		found.Current = there[0]
	}
	return found
}

func movesFrom(successor, from *corev1.PersistentVolumeClaim) bool {
	return successor.Annotations[layout.AnnotationMovesFrom] == string(from.UID)
}

func owns(machine types.UID, claim *corev1.PersistentVolumeClaim) bool {
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.UID == machine
}

// Target returns the claim that the machine's next run keeps its overlays in, or nil.
func (c Claims) Target() *corev1.PersistentVolumeClaim {
	if c.Successor != nil {
		return c.Successor
	}
	return c.Current
}

// Mounts reports whether the machine's next launcher pod mounts the claim of this name.
func (c Claims) Mounts(name string) bool {
	return c.Current != nil && c.Current.Name == name || c.Successor != nil && c.Successor.Name == name
}

// FreeName returns the name for a successor of Current, which must exist.
func (c Claims) FreeName(vm string) string {
	names := layout.StatePVCs(vm)
	if c.Current.Name == names[0] {
		return names[1]
	}
	return names[0]
}

// HasRoom reports whether a claim's volume has this many bytes by the time a pod's containers run. A volume whose file system
// is yet to grow has: the kubelet grows it when it mounts it, so that the pod must not wait for that.
func HasRoom(claim *corev1.PersistentVolumeClaim, bytes int64) bool {
	return tracking.ClaimBytes(claim) >= bytes || expandedUpToFileSystem(claim, bytes)
}

func expandedUpToFileSystem(claim *corev1.PersistentVolumeClaim, bytes int64) bool {
	if ExpansionFailed(claim) || claim.Spec.Resources.Requests.Storage().Value() < bytes {
		return false
	}
	if allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok && allocated.Value() < bytes {
		return false // an earlier, smaller expansion is pending
	}
	return slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
	})
}

// ExpansionFailed reports whether the storage has said that it cannot expand the claim's volume to what is requested.
func ExpansionFailed(claim *corev1.PersistentVolumeClaim) bool {
	status := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	return status == corev1.PersistentVolumeClaimControllerResizeInfeasible || status == corev1.PersistentVolumeClaimNodeResizeInfeasible
}

// ExpansionProblem returns what the storage says about an expansion that does not get on, or "".
func ExpansionProblem(claim *corev1.PersistentVolumeClaim) string {
	for _, c := range claim.Status.Conditions {
		failed := c.Type == corev1.PersistentVolumeClaimControllerResizeError || c.Type == corev1.PersistentVolumeClaimNodeResizeError
		if failed && c.Status == corev1.ConditionTrue && c.Message != "" {
			return c.Message
		}
	}
	return ""
}
