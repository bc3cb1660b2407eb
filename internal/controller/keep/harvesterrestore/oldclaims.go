package harvesterrestore

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/reconcile"
)

// deleteReplacedClaims deletes the claims that the machine had before it was replaced, if the restore says so. The
// status has them before they are deleted. A claim that anybody has as a volume stays.
func (r *reconciler) deleteReplacedClaims(ctx context.Context, base, o *harvesterv1.VirtualMachineRestore) error {
	if o.Status.Replaced == nil || o.Spec.DeletionPolicy != harvesterv1.DeletionPolicyDelete {
		return nil
	}
	users, err := r.findClaimUsers(ctx, o.Namespace)
	if err != nil {
		return err
	}
	var unused []*corev1.PersistentVolumeClaim
	for _, old := range o.Status.Replaced.Claims {
		key := types.NamespacedName{Namespace: o.Namespace, Name: old.Name}
		claim, err := reconcile.Find(ctx, r.live, key, &corev1.PersistentVolumeClaim{})
		switch {
		case err != nil:
			return err
		case claim == nil || claim.UID != old.UID:
			continue
		case users[old.Name] != "":
			r.events.Eventf(o, claim, corev1.EventTypeNormal, "Kept", "Restore",
				"PersistentVolumeClaim %s is kept: %s uses it",
				old.Name, users[old.Name])
			continue
		}
		unused = append(unused, claim)
		if !slices.Contains(o.Status.DeletedVolumes, old.Name) {
			o.Status.DeletedVolumes = append(o.Status.DeletedVolumes, old.Name)
		}
	}
	if err := r.writeStatus(ctx, base, o); err != nil {
		return err
	}
	for _, claim := range unused {
		if err := r.children.Remove(ctx, claim); err != nil {
			return err
		}
	}
	return nil
}

// findClaimUsers returns a machine, an instance or a pod for each claim that one of a namespace has as a volume, or a
// VolumeSnapshot of the claim. Pods that have ended do not count.
func (r *reconciler) findClaimUsers(ctx context.Context, namespace string) (map[string]string, error) {
	users := map[string]string{}
	for _, kind := range []string{definition.MachineKind.Kind, "VirtualMachineInstance"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(definition.MachineKind.GroupVersion().WithKind(kind + "List"))
		if err := r.live.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list %ss: %w", kind, err)
		}
		for i := range list.Items {
			for _, name := range claimsOf(&list.Items[i]) {
				users[name] = kind + " " + list.Items[i].GetName()
			}
		}
	}
	var snapshots snapshotv1.VolumeSnapshotList
	if err := r.live.List(ctx, &snapshots, client.InNamespace(namespace)); err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("list VolumeSnapshots: %w", err)
	}
	for i := range snapshots.Items {
		// Many storages have a volume's snapshots in the volume.
		if name := snapshots.Items[i].Spec.Source.PersistentVolumeClaimName; name != nil {
			users[*name] = "VolumeSnapshot " + snapshots.Items[i].Name
		}
	}
	var pods corev1.PodList
	if err := r.live.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				users[v.PersistentVolumeClaim.ClaimName] = "pod " + p.Name
			}
		}
	}
	return users, nil
}

// missingClaim returns a restored claim that a machine or an instance does not have, or "". One that is not there lacks none.
func missingClaim(o *harvesterv1.VirtualMachineRestore, vm *unstructured.Unstructured) string {
	has := claimsOf(vm)
	for i := range o.Status.VolumeRestores {
		name := o.Status.VolumeRestores[i].PersistentVolumeClaim.ObjectMeta.Name
		if vm != nil && !slices.Contains(has, name) {
			return name
		}
	}
	return ""
}

// replacedClaims returns those of the claims that the plan names which the machine still has as a volume that is restored.
// A disk that is not in the backup is not replaced, so its claim is the only copy.
func replacedClaims(o *harvesterv1.VirtualMachineRestore, vm *unstructured.Unstructured) []harvesterv1.ReplacedClaim {
	has := claimsOf(vm, append(otherVolumes(vm, o.Status.VolumeRestores), excludedByUser(o)...)...)
	var claims []harvesterv1.ReplacedClaim
	for _, c := range o.Status.Replaced.Claims {
		if slices.Contains(has, c.Name) {
			claims = append(claims, c)
		}
	}
	return claims
}

// otherVolumes returns the names of the machine's volumes that are not restored.
func otherVolumes(vm *unstructured.Unstructured, restored []harvesterv1.VolumeRestore) []string {
	volumes, _, _ := unstructured.NestedSlice(vm.Object, "spec", "template", "spec", "volumes")
	var others []string
	for _, v := range volumes {
		volume, _ := v.(map[string]any)
		name, _ := volume["name"].(string)
		if !slices.ContainsFunc(restored, func(r harvesterv1.VolumeRestore) bool { return r.VolumeName == name }) {
			others = append(others, name)
		}
	}
	return others
}
