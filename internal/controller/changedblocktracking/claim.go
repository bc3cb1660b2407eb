package changedblocktracking

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/layout"
)

// LabelState is on the claim that holds a machine's overlays; its value is the machine's name.
const LabelState = layout.LabelState

// StateClaim returns the claim for a machine's overlays and bitmaps. It is bytes long and has the given storage
// class, or the default one if class is nil.
func StateClaim(vm *kubevirtv1.VirtualMachine, bytes int64, class *string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       vm.Namespace,
			Name:            layout.StatePVC(vm.Name),
			Labels:          map[string]string{LabelState: vm.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, kubevirtv1.GroupVersion.WithKind("VirtualMachine"))},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI),
			}},
		},
	}
}

// claimAction is what has to happen to the state claim that an instance needs.
type claimAction int

const (
	claimKeep claimAction = iota
	claimCreate
	// claimReplace deletes a claim that is too small for the machine's present disks. It is created again once it
	// is gone.
	claimReplace
	claimWait
	// claimForeign means that a claim of this name belongs to somebody else.
	claimForeign
)

// decideClaim compares the existing claim, or nil, with what is needed. It replaces a claim only before the
// launcher pod exists. The overlays are lost then, and the next backup is full.
func decideClaim(vm *kubevirtv1.VirtualMachine, have *corev1.PersistentVolumeClaim, bytes int64, phase kubevirtv1.Phase) claimAction {
	switch {
	case have == nil:
		return claimCreate
	case !metav1.IsControlledBy(have, vm):
		return claimForeign
	case have.DeletionTimestamp != nil:
		return claimWait
	case virtualmachineinstance.ClaimBytes(have) < bytes && (phase == "" || phase == kubevirtv1.PhasePending):
		return claimReplace
	default:
		return claimKeep
	}
}

// ensureClaim creates the state claim that an instance needs. It waits, without an error, for the claims of the
// disks.
func (r *reconciler) ensureClaim(ctx context.Context, vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) error {
	claims := map[string]*corev1.PersistentVolumeClaim{}
	var first *corev1.PersistentVolumeClaim
	for _, v := range instance.Spec.Volumes {
		claim, err := r.findClaim(ctx, r.cached, vm.Namespace, v.PersistentVolumeClaim.ClaimName)
		if err != nil {
			return err
		}
		if claim == nil {
			return nil // Its creation triggers a reconcile.
		}
		claims[claim.Name] = claim
		if first == nil {
			first = claim
		}
	}
	bytes := virtualmachineinstance.StateClaimBytes(instance, claims)
	have, err := r.findClaim(ctx, r.cached, vm.Namespace, layout.StatePVC(vm.Name))
	if err != nil {
		return err
	}
	switch decideClaim(vm, have, bytes, instance.Status.Phase) {
	case claimCreate:
		return r.createClaim(ctx, vm, bytes, first)
	case claimReplace:
		r.events.Eventf(vm, have, corev1.EventTypeWarning, ReasonClaimReplaced, "Track",
			"PersistentVolumeClaim %s is too small for the machine's disks: Varve replaces it by one of %d bytes, and the next backup is full.", have.Name, bytes)
		return r.deleteClaim(ctx, have)
	case claimForeign:
		r.events.Eventf(vm, have, corev1.EventTypeWarning, ReasonClaimForeign, "Track",
			"PersistentVolumeClaim %s exists and does not belong to this machine; delete it so that Varve can create it for the overlays.", have.Name)
	case claimKeep, claimWait:
		// The claim is as it should be, or its deletion triggers a reconcile.
	}
	return nil
}

func (r *reconciler) createClaim(ctx context.Context, vm *kubevirtv1.VirtualMachine, bytes int64, disk *corev1.PersistentVolumeClaim) error {
	class, err := r.storageClass(ctx, disk)
	if err != nil {
		return err
	}
	claim := StateClaim(vm, bytes, class)
	err = r.cached.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		r.events.Eventf(vm, nil, corev1.EventTypeWarning, ReasonClaimRefused, "Track", "PersistentVolumeClaim %s was refused: %v", claim.Name, err)
		return fmt.Errorf("create claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	r.events.Eventf(vm, claim, corev1.EventTypeNormal, ReasonClaimCreated, "Track", "Created PersistentVolumeClaim %s with %d bytes for the overlays.", claim.Name, bytes)
	return nil
}

// defaultClass is the annotation that marks the default StorageClass.
const defaultClass = "storageclass.kubernetes.io/is-default-class"

// storageClass returns nil, which stands for the cluster's default class, if there is one, and otherwise the class
// of the machine's first disk.
func (r *reconciler) storageClass(ctx context.Context, disk *corev1.PersistentVolumeClaim) (*string, error) {
	classes := &storagev1.StorageClassList{}
	if err := r.cached.List(ctx, classes); err != nil {
		return nil, fmt.Errorf("list storage classes: %w", err)
	}
	for _, c := range classes.Items {
		if c.Annotations[defaultClass] == "true" {
			return nil, nil
		}
	}
	if disk == nil {
		return nil, nil
	}
	return disk.Spec.StorageClassName, nil
}

// dropClaim deletes the state claim of a machine that does not need it.
func (r *reconciler) dropClaim(ctx context.Context, vm *kubevirtv1.VirtualMachine) error {
	have, err := r.findClaim(ctx, r.cached, vm.Namespace, layout.StatePVC(vm.Name))
	if err != nil || have == nil || have.DeletionTimestamp != nil || !metav1.IsControlledBy(have, vm) {
		return err
	}
	if err := r.deleteClaim(ctx, have); err != nil {
		return err
	}
	r.events.Eventf(vm, have, corev1.EventTypeNormal, ReasonClaimDeleted, "Untrack", "Deleted PersistentVolumeClaim %s: the machine is not tracked any more.", have.Name)
	return nil
}

func (r *reconciler) deleteClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if err := r.cached.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// findClaim reads a claim. It returns nil if the claim does not exist.
func (r *reconciler) findClaim(ctx context.Context, from client.Reader, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := from.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, claim)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get claim %s/%s: %w", namespace, name, err)
	}
	return claim, nil
}
