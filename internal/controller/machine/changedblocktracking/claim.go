package changedblocktracking

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/stateclaim"
	"github.com/varvebackup/varve/internal/tracking"
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

// ensureClaim gives an instance a state claim with room for its overlays. It waits, without an error, for the claims of the
// disks. It returns when to look again, or 0.
func (r *reconciler) ensureClaim(ctx context.Context, vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) (time.Duration, error) {
	claims := map[string]*corev1.PersistentVolumeClaim{}
	var ordered []*corev1.PersistentVolumeClaim
	for _, v := range instance.Spec.Volumes {
		claim, err := r.findClaim(ctx, vm.Namespace, v.PersistentVolumeClaim.ClaimName)
		if err != nil {
			return 0, err
		}
		if claim == nil {
			return 0, nil // Its creation triggers a reconcile.
		}
		claims[claim.Name] = claim
		ordered = append(ordered, claim)
	}
	disks := virtualmachineinstance.TrackedDiskBytes(instance, claims)
	in := claimInput{Now: r.clock.Now(), VM: vm, Instance: instance, Bytes: tracking.StateClaimSize(disks)}
	var err error
	if in.Claims, err = r.findStateClaims(ctx, vm); err != nil {
		return 0, err
	}
	if in.Expandable, in.SuccessorBinds, err = r.askClasses(ctx, in.Claims); err != nil {
		return 0, err
	}
	d := decideClaim(in)
	if err := r.writeGrowth(ctx, instance, d.Growth); err != nil {
		return 0, err
	}
	return d.RequeueAfter, r.applyClaim(ctx, in, d, ordered, tracking.StateClaimRequest(disks))
}

// applyClaim does what was decided. bytes is the size of a claim that is made or expanded, disks are the claims of
// the machine's disks.
func (r *reconciler) applyClaim(
	ctx context.Context, in claimInput, d claimDecision, disks []*corev1.PersistentVolumeClaim, bytes int64,
) error {
	vm, current := in.VM, in.Claims.Current
	switch d.Action {
	case claimCreate:
		return r.createClaim(ctx, vm, bytes, disks)
	case claimExpand:
		return r.expandClaim(ctx, in, d.Growth, bytes)
	case claimSucceed:
		return r.createSuccessor(ctx, in, d.Growth, bytes, disks)
	case claimRetire:
		r.events.Eventf(vm, current, corev1.EventTypeNormal, ReasonClaimRetired, "Track",
			"Deleted PersistentVolumeClaim %s: its overlays have moved to %s.", current.Name, in.Claims.Successor.Name)
		return r.deleteClaim(ctx, current)
	case claimReplace:
		r.events.Eventf(vm, current, corev1.EventTypeWarning, ReasonClaimReplaced, "Track",
			"PersistentVolumeClaim %s is too small for the machine's disks, which need %d bytes: Varve replaces it, and the next backup is full.%s", current.Name, in.Bytes, because(d.Growth.Refusal))
		return r.deleteClaim(ctx, current)
	case claimRemake:
		return r.deleteClaim(ctx, in.Claims.Successor)
	case claimForeign:
		r.events.Eventf(vm, current, corev1.EventTypeWarning, ReasonClaimForeign, "Track",
			"PersistentVolumeClaim %s exists and does not belong to this machine; delete it so that Varve can create it for the overlays.", current.Name)
	case claimKeep, claimWait:
		// The claim is as it should be, or a change of a claim or the deadline triggers a reconcile.
	}
	return nil
}

func because(refusal string) string {
	if refusal == "" {
		return ""
	}
	return " It could neither be expanded nor moved: " + refusal
}

// findStateClaims returns the machine's state claims.
func (r *reconciler) findStateClaims(ctx context.Context, vm *kubevirtv1.VirtualMachine) (stateclaim.Claims, error) {
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range layout.StatePVCs(vm.Name) {
		claim, err := r.findClaim(ctx, vm.Namespace, name)
		if err != nil {
			return stateclaim.Claims{}, err
		}
		claims[name] = claim
	}
	return stateclaim.Find(vm.Name, vm.UID, claims), nil
}

func (r *reconciler) createClaim(
	ctx context.Context, vm *kubevirtv1.VirtualMachine, bytes int64, disks []*corev1.PersistentVolumeClaim,
) error {
	class, shared, err := r.storageClass(ctx, disks)
	if err != nil {
		return err
	}
	claim := StateClaim(vm, bytes, class)
	if shared {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}
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

// storageClass returns the class of the state claim, and whether two nodes are to have it at a time. That is so if
// the guest could move to another node but for this claim: see sharedClass. Otherwise it returns nil, which stands
// for the cluster's default class, if there is one, and the class of the machine's first disk if not.
func (r *reconciler) storageClass(
	ctx context.Context, disks []*corev1.PersistentVolumeClaim,
) (class *string, shared bool, err error) {
	classes := &storagev1.StorageClassList{}
	if err := r.cached.List(ctx, classes); err != nil {
		return nil, false, fmt.Errorf("list storage classes: %w", err)
	}
	if class := sharedClass(disks, classes.Items); class != nil {
		return class, true, nil
	}
	for _, c := range classes.Items {
		if c.Annotations[defaultClass] == "true" {
			return nil, false, nil
		}
	}
	if len(disks) == 0 {
		return nil, false, nil
	}
	return disks[0].Spec.StorageClassName, false, nil
}

// sharedClass returns the class of a disk whose file systems two nodes can have at a time, if all disks are such that
// two nodes can have them. A disk with a file system proves it. A block device proves nothing about file systems, and
// a claim that never got a volume would keep the machine from starting; for its class an administrator says it with
// an annotation.
func sharedClass(disks []*corev1.PersistentVolumeClaim, classes []storagev1.StorageClass) *string {
	var found *string
	for _, disk := range disks {
		if !slices.Contains(disk.Spec.AccessModes, corev1.ReadWriteMany) {
			return nil
		}
		class := disk.Spec.StorageClassName
		says := slices.ContainsFunc(classes, func(c storagev1.StorageClass) bool {
			return class != nil && c.Name == *class && c.Annotations[layout.AnnotationSharedFilesystems] == "true"
		})
		if found == nil && class != nil && *class != "" && (says || !tracking.IsBlock(disk.Spec.VolumeMode)) {
			found = class
		}
	}
	return found
}

// dropClaims deletes the state claims of a machine that does not need them.
func (r *reconciler) dropClaims(ctx context.Context, vm *kubevirtv1.VirtualMachine) error {
	for _, name := range layout.StatePVCs(vm.Name) {
		have, err := r.findClaim(ctx, vm.Namespace, name)
		if err != nil {
			return err
		}
		if have == nil || have.DeletionTimestamp != nil || !metav1.IsControlledBy(have, vm) {
			continue
		}
		if err := r.deleteClaim(ctx, have); err != nil {
			return err
		}
		r.events.Eventf(vm, have, corev1.EventTypeNormal, ReasonClaimDeleted, "Untrack", "Deleted PersistentVolumeClaim %s: the machine is not tracked any more.", have.Name)
	}
	return nil
}

func (r *reconciler) deleteClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	preconditions := client.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion}
	if err := r.cached.Delete(ctx, claim, preconditions); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// findClaim reads a claim. It returns nil if the claim does not exist.
func (r *reconciler) findClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := r.cached.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, claim)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get claim %s/%s: %w", namespace, name, err)
	}
	return claim, nil
}
