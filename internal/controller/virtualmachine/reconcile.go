package virtualmachine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// conflictDelay is how long the cache gets to catch up after a conflict.
const conflictDelay = 50 * time.Millisecond

// Reconcile takes one machine one step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in, err := r.gather(ctx, r.client, req)
	if err != nil || in.VM == nil {
		return ctrl.Result{}, err
	}
	result, err := r.apply(ctx, in, Decide(in))
	if apierrors.IsConflict(err) {
		// Somebody else wrote in between, or the cache is behind: look again.
		return ctrl.Result{RequeueAfter: conflictDelay}, nil
	}
	return result, err
}

// gather reads what Decide looks at. If the machine does not exist, Input.VM is nil.
func (r *reconciler) gather(ctx context.Context, from client.Reader, req ctrl.Request) (Input, error) {
	vm := &kubevirtv1.VirtualMachine{}
	if err := from.Get(ctx, req.NamespacedName, vm); err != nil {
		if apierrors.IsNotFound(err) {
			return Input{}, nil
		}
		return Input{}, fmt.Errorf("get virtual machine %s: %w", req, err)
	}
	in := Input{Now: r.clock.Now(), VM: vm}
	instance := &kubevirtv1.VirtualMachineInstance{}
	err := from.Get(ctx, req.NamespacedName, instance)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return Input{}, fmt.Errorf("get instance %s: %w", req, err)
	case metav1.IsControlledBy(instance, vm):
		in.Instance = instance
	default:
		in.Foreign = true
	}
	return in, nil
}

// apply carries out d: finalizer and spec first, then status, then the instance.
func (r *reconciler) apply(ctx context.Context, in Input, d Decision) (ctrl.Result, error) {
	vm := in.VM.DeepCopy()
	if vm.DeletionTimestamp == nil && controllerutil.AddFinalizer(vm, Finalizer) {
		// The write comes back as an event.
		return ctrl.Result{}, r.client.Patch(ctx, vm, optimistic(in.VM))
	}
	if d.RunStrategy != "" {
		vm.Spec.SetStrategy(d.RunStrategy)
		return ctrl.Result{}, r.client.Patch(ctx, vm, optimistic(in.VM))
	}
	if err := r.writeStatus(ctx, vm, d); err != nil {
		return ctrl.Result{}, err
	}
	switch {
	case d.Delete:
		return ctrl.Result{}, r.delete(ctx, vm, in.Instance)
	case d.Create:
		return ctrl.Result{}, r.create(ctx, vm)
	case d.Released && controllerutil.RemoveFinalizer(vm, Finalizer):
		base := vm.DeepCopy()
		controllerutil.AddFinalizer(base, Finalizer)
		return ctrl.Result{}, client.IgnoreNotFound(r.client.Patch(ctx, vm, optimistic(base)))
	}
	return ctrl.Result{RequeueAfter: d.RequeueAfter}, nil
}

// writeStatus writes the decided status if it differs, and reports a failed start when it is counted.
func (r *reconciler) writeStatus(ctx context.Context, vm *kubevirtv1.VirtualMachine, d Decision) error {
	if equality.Semantic.DeepEqual(vm.Status, d.Status) {
		return nil
	}
	base := vm.DeepCopy()
	vm.Status = d.Status
	if err := r.client.Status().Patch(ctx, vm, optimistic(base)); err != nil {
		return fmt.Errorf("write status of virtual machine %s/%s: %w", vm.Namespace, vm.Name, err)
	}
	if d.CountedFailure {
		startFailures.Inc()
		f := d.Status.StartFailure
		r.events.Eventf(vm, nil, corev1.EventTypeWarning, "StartFailed", "Start",
			"The instance failed before its guest ran, %d in a row; the next start is at %s.", f.ConsecutiveFailCount, f.RetryAfterTimestamp.UTC().Format("15:04:05 MST"))
	}
	return nil
}

func (r *reconciler) delete(ctx context.Context, vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) error {
	err := r.client.Delete(ctx, instance, client.Preconditions{UID: &instance.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // The cache is behind: the instance is gone, or another one has its name.
	}
	if err != nil {
		return fmt.Errorf("delete instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	r.events.Eventf(vm, instance, corev1.EventTypeNormal, "SuccessfulDelete", "Stop", "Deleted instance %s.", instance.Name)
	return nil
}

// create creates the instance, provided that the API server's state leads to the same decision as the cache's.
func (r *reconciler) create(ctx context.Context, vm *kubevirtv1.VirtualMachine) error {
	in, err := r.gather(ctx, r.live, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vm)})
	if err != nil || in.VM == nil || !Decide(in).Create {
		return err
	}
	tracked, err := r.tracked(ctx, in.VM)
	if err != nil {
		return err
	}
	instance := Instance(in.VM, tracked)
	err = r.client.Create(ctx, instance)
	switch {
	case err == nil:
		r.events.Eventf(vm, instance, corev1.EventTypeNormal, "SuccessfulCreate", "Start", "Created instance %s.", instance.Name)
		return nil
	case apierrors.IsAlreadyExists(err):
		return nil
	default:
		return r.refused(ctx, in, err)
	}
}

// refused shows in status why the instance could not be created, and returns the error so that it is retried.
func (r *reconciler) refused(ctx context.Context, in Input, err error) error {
	in.CreateError = err.Error()
	r.events.Eventf(in.VM, nil, corev1.EventTypeWarning, ReasonFailedCreate, "Start", "The instance was refused: %v", err)
	if werr := r.writeStatus(ctx, in.VM.DeepCopy(), Decide(in)); werr != nil {
		return werr
	}
	return fmt.Errorf("create instance %s/%s: %w", in.VM.Namespace, in.VM.Name, err)
}

// optimistic returns a patch that the API server refuses if the object has changed since base was read.
func optimistic(base client.Object) client.Patch {
	return client.MergeFromWithOptions(base.DeepCopyObject().(client.Object), client.MergeFromWithOptimisticLock{})
}
