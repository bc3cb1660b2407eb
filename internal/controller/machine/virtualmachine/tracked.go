package virtualmachine

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/log"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/machine/selection"
)

// tracksNextInstance reports whether the disks of the machine's next instance are to be tracked.
func (r *reconciler) tracksNextInstance(ctx context.Context, vm *kubevirtv1.VirtualMachine) (bool, error) {
	selected, err := selection.Wanted(ctx, r.cached, r.configuration, vm)
	if errors.Is(err, selection.ErrInvalid) {
		// The controller of changed block tracking reports the selector. A machine must not stay down because of
		// it.
		log.FromContext(ctx).Error(err, "keep changed block tracking as it was: a selector is invalid")
		return trackedBefore(vm), nil
	}
	return selected, err
}

// trackedBefore guesses from a machine's state whether its disks are tracked, for when the selectors cannot be
// read. When in doubt, the machine is tracked: that costs a little space, while a wrong guess the other way makes
// its next backup a full one.
func trackedBefore(vm *kubevirtv1.VirtualMachine) bool {
	cbt := vm.Status.ChangedBlockTracking
	return cbt != nil && cbt.State != "" && cbt.State != kubevirtv1.ChangedBlockTrackingDisabled
}
