package virtualmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/tracking"
)

// tracked decides whether the disks of the machine's next instance are tracked.
func (r *reconciler) tracked(ctx context.Context, vm *kubevirtv1.VirtualMachine) (bool, error) {
	kv := &kubevirtv1.KubeVirt{}
	if err := r.client.Get(ctx, r.configuration, kv); apierrors.IsNotFound(err) {
		kv = nil
	} else if err != nil {
		return false, fmt.Errorf("get the configuration %s: %w", r.configuration, err)
	}
	ns := &corev1.Namespace{}
	if err := r.client.Get(ctx, types.NamespacedName{Name: vm.Namespace}, ns); err != nil {
		return false, fmt.Errorf("get namespace %s: %w", vm.Namespace, err)
	}
	selected, err := tracking.Selected(kv, ns.Labels, vm.Labels)
	if err != nil {
		// The controller of changed block tracking reports it. A machine must not stay down because of it.
		log.FromContext(ctx).Error(err, "keep changed block tracking as it was: a selector is invalid")
		return TrackedBefore(vm), nil
	}
	return selected, nil
}

// TrackedBefore guesses from a machine's state whether its disks are tracked, for when the selectors cannot be read. A machine
// in doubt is tracked: that costs a little space, and the other way round its next backup would have to be full.
func TrackedBefore(vm *kubevirtv1.VirtualMachine) bool {
	cbt := vm.Status.ChangedBlockTracking
	return cbt != nil && cbt.State != "" && cbt.State != kubevirtv1.ChangedBlockTrackingDisabled
}
