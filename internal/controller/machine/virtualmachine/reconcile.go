package virtualmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Reconcile takes one machine one step further.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in, err := r.gatherInput(ctx, r.cached, req)
	if err != nil || in.VM == nil {
		return ctrl.Result{}, err
	}
	return reconcile.RetryConflict(r.applyDecision(ctx, in, decide(in)))
}

// gatherInput reads what decide looks at. If the machine does not exist, input.VM is nil.
func (r *reconciler) gatherInput(ctx context.Context, from client.Reader, req ctrl.Request) (input, error) {
	vm := &kubevirtv1.VirtualMachine{}
	if err := from.Get(ctx, req.NamespacedName, vm); err != nil {
		if apierrors.IsNotFound(err) {
			return input{}, nil
		}
		return input{}, fmt.Errorf("get virtual machine %s: %w", req, err)
	}
	in := input{Now: r.clock.Now(), VM: vm}
	instance := &kubevirtv1.VirtualMachineInstance{}
	err := from.Get(ctx, req.NamespacedName, instance)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return input{}, fmt.Errorf("get instance %s: %w", req, err)
	case metav1.IsControlledBy(instance, vm):
		in.Instance = instance
	default:
		in.Foreign = true
	}
	return in, nil
}

// applyDecision carries out d: finalizer and spec first, then status, then the instance.
func (r *reconciler) applyDecision(ctx context.Context, in input, d decision) (ctrl.Result, error) {
	vm := in.VM.DeepCopy()
	if vm.DeletionTimestamp == nil && controllerutil.AddFinalizer(vm, Finalizer) {
		// The write comes back as an event.
		return ctrl.Result{}, r.cached.Patch(ctx, vm, reconcile.MergeFrom(in.VM))
	}
	if d.RunStrategy != "" {
		vm.Spec.SetStrategy(d.RunStrategy)
		return ctrl.Result{}, r.cached.Patch(ctx, vm, reconcile.MergeFrom(in.VM))
	}
	if err := r.writeStatus(ctx, vm, d); err != nil {
		return ctrl.Result{}, err
	}
	switch {
	case d.Delete:
		return ctrl.Result{}, r.deleteInstance(ctx, vm, in.Instance)
	case d.Create:
		return ctrl.Result{}, r.createInstance(ctx, vm)
	case d.Released && controllerutil.RemoveFinalizer(vm, Finalizer):
		base := vm.DeepCopy()
		controllerutil.AddFinalizer(base, Finalizer)
		return ctrl.Result{}, client.IgnoreNotFound(r.cached.Patch(ctx, vm, reconcile.MergeFrom(base)))
	}
	return ctrl.Result{RequeueAfter: d.RequeueAfter}, nil
}

// writeStatus writes the decided status if it differs, and reports a failed start when it is counted.
func (r *reconciler) writeStatus(ctx context.Context, vm *kubevirtv1.VirtualMachine, d decision) error {
	if equality.Semantic.DeepEqual(vm.Status, d.Status) {
		return nil
	}
	base := vm.DeepCopy()
	vm.Status = d.Status
	if err := r.cached.Status().Patch(ctx, vm, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write status of virtual machine %s/%s: %w", vm.Namespace, vm.Name, err)
	}
	if d.CountedFailure {
		startFailures.Inc()
	}
	if note := startFailureNote(d); note != "" {
		r.events.Eventf(vm, nil, corev1.EventTypeWarning, virtualmachineinstance.ReasonStartFailed, "Start", "%s", note)
	}
	return nil
}

// startFailureNote returns what the event of a failed start says, or "" if there is nothing to report. The instance's own words come
// last, because long events are cut off.
func startFailureNote(d decision) string {
	failed, f := d.FailedStart, d.Status.StartFailure
	switch {
	case failed == nil || f != nil && !d.CountedFailure:
		return ""
	case f == nil:
		return fmt.Sprintf("%s: %s", failed.Reason, failed.Message)
	default:
		return fmt.Sprintf("Failures in a row: %d; the next start is at %s. %s: %s",
			f.ConsecutiveFailCount, f.RetryAfterTimestamp.UTC().Format("15:04:05 MST"), failed.Reason, failed.Message)
	}
}

func (r *reconciler) deleteInstance(ctx context.Context, vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) error {
	err := r.cached.Delete(ctx, instance, client.Preconditions{UID: &instance.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // The cache is behind: the instance is gone, or another one has its name.
	}
	if err != nil {
		return fmt.Errorf("delete instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	r.events.Eventf(vm, instance, corev1.EventTypeNormal, "SuccessfulDelete", "Stop", "Deleted instance %s.", instance.Name)
	return nil
}

// createInstance creates the instance, provided that the API server's state leads to the same decision as the cache's.
func (r *reconciler) createInstance(ctx context.Context, vm *kubevirtv1.VirtualMachine) error {
	in, err := r.gatherInput(ctx, r.live, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vm)})
	if err != nil || in.VM == nil || !decide(in).Create {
		return err
	}
	tracked, err := r.tracksNextInstance(ctx, in.VM)
	if err != nil {
		return err
	}
	instance := instanceFor(in.VM, tracked)
	err = r.cached.Create(ctx, instance)
	switch {
	case err == nil:
		r.events.Eventf(vm, instance, corev1.EventTypeNormal, "SuccessfulCreate", "Start", "Created instance %s.", instance.Name)
		return nil
	case apierrors.IsAlreadyExists(err):
		return nil
	default:
		return r.showRefusal(ctx, in, err)
	}
}

// showRefusal shows in status why the instance could not be created, and returns the error so that it is retried.
func (r *reconciler) showRefusal(ctx context.Context, in input, err error) error {
	in.CreateError = err.Error()
	r.events.Eventf(in.VM, nil, corev1.EventTypeWarning, ReasonFailedCreate, "Start", "The instance was refused: %v", err)
	if werr := r.writeStatus(ctx, in.VM.DeepCopy(), decide(in)); werr != nil {
		return werr
	}
	return fmt.Errorf("create instance %s/%s: %w", in.VM.Namespace, in.VM.Name, err)
}
