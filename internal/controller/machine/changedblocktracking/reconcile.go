package changedblocktracking

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/selection"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Reconcile brings the tracking state of one machine up to date.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vm := &kubevirtv1.VirtualMachine{}
	if err := r.cached.Get(ctx, req.NamespacedName, vm); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if vm.DeletionTimestamp != nil {
		// The machine owns the claim, so the claim goes with it.
		return ctrl.Result{}, nil
	}
	again, err := r.reconcileMachine(ctx, vm)
	if errors.Is(err, selection.ErrInvalid) {
		// selectorReconciler reports it. Fixing the selector triggers a reconcile.
		return ctrl.Result{}, nil
	}
	return reconcile.RetryConflict(ctrl.Result{RequeueAfter: again}, err)
}

// reconcileMachine returns when the machine must be looked at again, or 0.
func (r *reconciler) reconcileMachine(ctx context.Context, vm *kubevirtv1.VirtualMachine) (time.Duration, error) {
	instance, err := r.findInstance(ctx, vm)
	if err != nil {
		return 0, err
	}
	selected, err := selection.Wanted(ctx, r.cached, r.configuration, vm)
	if errors.Is(err, selection.ErrInvalid) && instance != nil {
		if again, kept := r.keepTrackedClaim(ctx, vm, instance); kept != nil || again > 0 {
			return again, kept
		}
	}
	if err != nil {
		return 0, err
	}
	gate, err := selection.GateOn(ctx, r.cached, r.configuration)
	if err != nil {
		return 0, err
	}
	in := input{Selected: selected, GateOff: !gate, Instance: instance}
	if vm.Status.ChangedBlockTracking != nil {
		in.VM = vm.Status.ChangedBlockTracking.State
	}
	d := decide(in)
	if err := r.writeInstance(ctx, instance, d.Instance); err != nil {
		return 0, err
	}
	if err := r.writeVM(ctx, vm, d.VM); err != nil {
		return 0, err
	}
	switch {
	case d.NeedClaim:
		return r.ensureClaim(ctx, vm, instance)
	case d.DropClaim:
		return 0, r.dropClaims(ctx, vm)
	}
	return 0, nil
}

// keepTrackedClaim creates the claim of an instance that was created as tracked, while the selectors are invalid.
func (r *reconciler) keepTrackedClaim(ctx context.Context, vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) (time.Duration, error) {
	// Selected affects only the claim here: no state is written.
	if decide(input{Selected: true, Instance: instance}).NeedClaim {
		return r.ensureClaim(ctx, vm, instance)
	}
	return 0, nil
}

// findInstance returns the machine's own instance, or nil.
func (r *reconciler) findInstance(ctx context.Context, vm *kubevirtv1.VirtualMachine) (*kubevirtv1.VirtualMachineInstance, error) {
	instance := &kubevirtv1.VirtualMachineInstance{}
	err := r.cached.Get(ctx, client.ObjectKeyFromObject(vm), instance)
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(instance, vm) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get instance %s/%s: %w", vm.Namespace, vm.Name, err)
	}
	return instance, nil
}

// writeInstance shows a state on the instance. It keeps the rest of changedBlockTracking, such as a backup's lock.
func (r *reconciler) writeInstance(ctx context.Context, instance *kubevirtv1.VirtualMachineInstance, s kubevirtv1.ChangedBlockTrackingState) error {
	if instance == nil || s == "" || trackingState(instance) == s {
		return nil
	}
	base := instance.DeepCopy()
	if instance.Status.ChangedBlockTracking == nil {
		instance.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{}
	}
	instance.Status.ChangedBlockTracking.State = s
	if err := r.cached.Status().Patch(ctx, instance, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write status of instance %s/%s: %w", instance.Namespace, instance.Name, err)
	}
	return nil
}

// messages say what a state means to the machine's owner.
var messages = map[kubevirtv1.ChangedBlockTrackingState]string{
	kubevirtv1.ChangedBlockTrackingPendingRestart: "Restart the machine: whether its disks are tracked changes at its next start.",
	kubevirtv1.ChangedBlockTrackingInitializing:   "The overlays that track the machine's disks are being set up.",
	kubevirtv1.ChangedBlockTrackingEnabled:        "Every eligible disk of the machine is tracked.",
	kubevirtv1.ChangedBlockTrackingFGDisabled:     "Feature gate IncrementalBackup is off: a running guest stays tracked until it restarts.",
	kubevirtv1.ChangedBlockTrackingDisabled:       "The machine's disks are not tracked any more.",
}

func (r *reconciler) writeVM(ctx context.Context, vm *kubevirtv1.VirtualMachine, s kubevirtv1.ChangedBlockTrackingState) error {
	if s == "" || vm.Status.ChangedBlockTracking != nil && vm.Status.ChangedBlockTracking.State == s {
		return nil
	}
	base := vm.DeepCopy()
	if vm.Status.ChangedBlockTracking == nil {
		vm.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{}
	}
	vm.Status.ChangedBlockTracking.State = s
	if err := r.cached.Status().Patch(ctx, vm, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("write status of virtual machine %s/%s: %w", vm.Namespace, vm.Name, err)
	}
	r.events.Eventf(vm, nil, eventType(s), ReasonState+string(s), "Track", "%s", messages[s])
	return nil
}

// eventType returns Warning for a state that the machine's owner has to do something about.
func eventType(s kubevirtv1.ChangedBlockTrackingState) string {
	if s == kubevirtv1.ChangedBlockTrackingPendingRestart {
		return corev1.EventTypeWarning
	}
	return corev1.EventTypeNormal
}
