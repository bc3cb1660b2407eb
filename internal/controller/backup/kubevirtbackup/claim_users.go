package kubevirtbackup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/layout"
)

// claimUser is a virtual machine that has a claim as a disk.
type claimUser struct {
	machine, disk string
	// running says that a guest uses the disk, or is about to.
	running bool
}

// claimIndex is a cache index of machines and instances by the claims of their disks.
const claimIndex = "varve.claims"

func indexClaimUsers(ctx context.Context, mgr ctrl.Manager) error {
	for _, kind := range []client.Object{&kubevirtv1.VirtualMachine{}, &kubevirtv1.VirtualMachineInstance{}} {
		err := mgr.GetFieldIndexer().IndexField(ctx, kind, claimIndex, func(o client.Object) []string {
			var claims []string
			for _, v := range volumesOf(o) {
				if v.PersistentVolumeClaim != nil {
					claims = append(claims, v.PersistentVolumeClaim.ClaimName)
				}
			}
			return claims
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// volumesOf lists the volumes of a machine or an instance.
func volumesOf(o client.Object) []kubevirtv1.Volume {
	switch o := o.(type) {
	case *kubevirtv1.VirtualMachine:
		if o.Spec.Template == nil {
			return nil
		}
		return o.Spec.Template.Spec.Volumes
	case *kubevirtv1.VirtualMachineInstance:
		return o.Spec.Volumes
	default:
		return nil
	}
}

// diskOnClaim returns the name of the machine's or instance's volume on the claim, or "".
func diskOnClaim(o client.Object, claim string) string {
	for _, v := range volumesOf(o) {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim {
			return v.Name
		}
	}
	return ""
}

// claimUsers reads from the cache which machines have the claim as a disk. A machine that the cache does not show
// yet wakes the backup later, and nothing that was written by then is harmed.
func (r *reconciler) claimUsers(ctx context.Context, namespace, claim string) ([]claimUser, error) {
	var users []claimUser
	var instances kubevirtv1.VirtualMachineInstanceList
	if err := r.cached.List(ctx, &instances, client.InNamespace(namespace), client.MatchingFields{claimIndex: claim}); err != nil {
		return nil, fmt.Errorf("list the instances on claim %s: %w", claim, err)
	}
	for i := range instances.Items {
		o := &instances.Items[i]
		users = append(users, claimUser{machine: o.Name, disk: diskOnClaim(o, claim), running: !o.Status.Phase.Final()})
	}
	var machines kubevirtv1.VirtualMachineList
	if err := r.cached.List(ctx, &machines, client.InNamespace(namespace), client.MatchingFields{claimIndex: claim}); err != nil {
		return nil, fmt.Errorf("list the virtual machines on claim %s: %w", claim, err)
	}
	for i := range machines.Items {
		users = append(users, claimUser{machine: machines.Items[i].Name, disk: diskOnClaim(&machines.Items[i], claim)})
	}
	return users, nil
}

// isStateClaim reports whether a claim holds, or is reserved for, a machine's record of changes. Such a claim is
// deleted with everything on it as soon as its machine is no longer tracked.
func isStateClaim(claim *corev1.PersistentVolumeClaim) bool {
	reserved := slices.ContainsFunc(layout.StatePVCs(""), func(prefix string) bool { return strings.HasPrefix(claim.Name, prefix) })
	if _, labelled := claim.Labels[layout.LabelState]; labelled || reserved {
		return true
	}
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.APIVersion == kubevirtv1.GroupVersion.String() && owner.Kind == "VirtualMachine"
}

// claimInUse returns an obstacle if the target belongs to a machine, or nil.
func claimInUse(in *input) *obstacle {
	name := in.Backup.Spec.PVCName
	if in.Claim != nil && isStateClaim(in.Claim) {
		return failWith(backupstate.TargetHoldsRecord(name))
	}
	if in.Instance != nil {
		if disk := diskOnClaim(in.Instance, name); disk != "" {
			return failWith(backupstate.TargetIsOwnDisk(name, disk))
		}
	}
	for _, u := range in.ClaimUsers {
		return failWith(backupstate.TargetIsDisk(name, u.disk, u.machine))
	}
	return nil
}

// targetTaken reports whether a guest began to use the target as a disk while data moves, and how the backup ends
// then. The guest takes precedence, because the backup could fill the file system that its disk is on. A machine
// that merely names the claim is no reason to lose a running backup; the next backup is refused.
func targetTaken(in *input) (backupstate.State, bool) {
	for _, u := range in.ClaimUsers {
		if u.running {
			return backupstate.TargetTaken(in.Backup.Spec.PVCName, u.disk, u.machine), true
		}
	}
	return backupstate.State{}, false
}
