package changedblocktracking

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
	"github.com/varvebackup/varve/internal/stateclaim"
)

// writeGrowth notes on the instance what is being tried, where its controller reads it for the instance's conditions.
func (r *reconciler) writeGrowth(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, growth stateclaim.Growth) error {
	if stateclaim.GrowthOf(instance.Annotations).Equal(growth) {
		return nil
	}
	annotations, err := growth.Write(instance.Annotations)
	if err != nil {
		return err
	}
	base := instance.DeepCopy()
	instance.Annotations = annotations
	if err := r.cached.Patch(ctx, instance, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write annotation %s of instance %s/%s: %w", layout.AnnotationStateGrowth, instance.Namespace, instance.Name, err)
	}
	return nil
}

// expandClaim asks for more room in the current claim. A refusal is written down, and the overlays move instead.
func (r *reconciler) expandClaim(ctx context.Context, in claimInput, growth stateclaim.Growth, bytes int64) error {
	current := in.Claims.Current
	base, grown := current.DeepCopy(), current.DeepCopy()
	grown.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
	err := r.cached.Patch(ctx, grown, reconcile.MergeFrom(base))
	if reconcile.IsRefusal(err) {
		return r.noteRefusal(ctx, in, growth, fmt.Sprintf("The expansion of PersistentVolumeClaim %s was refused: %v", current.Name, err))
	}
	if err != nil {
		return fmt.Errorf("expand claim %s/%s: %w", current.Namespace, current.Name, err)
	}
	r.events.Eventf(in.VM, current, corev1.EventTypeNormal, ReasonClaimExpanded, "Track", "PersistentVolumeClaim %s is being expanded to %d bytes for the overlays.", current.Name, bytes)
	return nil
}

// noteRefusal shows why a step has not succeeded. That is said once.
func (r *reconciler) noteRefusal(ctx context.Context, in claimInput, growth stateclaim.Growth, why string) error {
	if growth.Refusal == why {
		return nil
	}
	r.events.Eventf(in.VM, in.Claims.Current, corev1.EventTypeWarning, ReasonClaimRefused, "Track", "%s", why)
	growth.Refusal = why
	return r.writeGrowth(ctx, in.Instance, growth)
}

// createSuccessor creates the claim that the overlays move to. A refusal is written down, and tried again until the deadline.
func (r *reconciler) createSuccessor(
	ctx context.Context, in claimInput, growth stateclaim.Growth, bytes int64, disks []*corev1.PersistentVolumeClaim,
) error {
	current := in.Claims.Current
	class, shared, err := r.classOfSuccessor(ctx, current, disks)
	if err != nil {
		return err
	}
	claim := StateClaim(in.VM, bytes, class)
	if shared {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}
	claim.Name = in.Claims.FreeName(in.VM.Name)
	claim.Annotations = map[string]string{layout.AnnotationMovesFrom: string(current.UID)}
	stranger, err := r.findClaim(ctx, claim.Namespace, claim.Name)
	if err != nil {
		return err
	}
	if stranger != nil {
		return r.noteRefusal(ctx, in, growth, fmt.Sprintf("PersistentVolumeClaim %s exists and does not have this machine's overlays; delete it", claim.Name))
	}
	err = r.cached.Create(ctx, claim)
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil // the cache is behind
	case reconcile.IsRefusal(err):
		return r.noteRefusal(ctx, in, growth, fmt.Sprintf("PersistentVolumeClaim %s was refused: %v", claim.Name, err))
	case err != nil:
		return fmt.Errorf("create claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	r.events.Eventf(in.VM, claim, corev1.EventTypeNormal, ReasonClaimSucceeded, "Track",
		"PersistentVolumeClaim %s is too small for the machine's disks: created %s with %d bytes, which its overlays move to.", current.Name, claim.Name, bytes)
	return nil
}

// classOfSuccessor returns the class of the current claim, which suits the machine's nodes, as long as there is such
// a class, and whether two nodes are to have the successor at a time.
func (r *reconciler) classOfSuccessor(
	ctx context.Context, current *corev1.PersistentVolumeClaim, disks []*corev1.PersistentVolumeClaim,
) (name *string, shared bool, err error) {
	class, err := r.classOf(ctx, current)
	if err != nil {
		return nil, false, err
	}
	if class != nil {
		return &class.Name, slices.Contains(current.Spec.AccessModes, corev1.ReadWriteMany), nil
	}
	return r.storageClass(ctx, disks)
}

// askClasses reports whether the current claim can be expanded, and whether the successor has a volume or gets one when a pod
// mounts it.
func (r *reconciler) askClasses(ctx context.Context, claims stateclaim.Claims) (expandable, successorBinds bool, err error) {
	if claims.Current != nil {
		class, err := r.classOf(ctx, claims.Current)
		if err != nil {
			return false, false, err
		}
		expandable = class != nil && ptr.Deref(class.AllowVolumeExpansion, false)
	}
	if claims.Successor == nil || claims.Successor.Status.Phase == corev1.ClaimBound {
		return expandable, true, nil
	}
	class, err := r.classOf(ctx, claims.Successor)
	return expandable, class != nil && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer, err
}

// classOf returns a claim's storage class, or nil if it has none or the class does not exist any more.
func (r *reconciler) classOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	if name == "" {
		return nil, nil
	}
	class := &storagev1.StorageClass{}
	err := r.cached.Get(ctx, types.NamespacedName{Name: name}, class)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get storage class %s: %w", name, err)
	}
	return class, nil
}
