// Package selection reads what determines whether a machine is to be tracked: the configuration, and the labels of
// the machine and of its namespace. The decision itself is tracking.Selected. The callers differ only in how they
// handle an invalid selector.
package selection

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/tracking"
)

// ErrInvalid says that a selector of the configuration cannot be evaluated. The error that wraps it names the
// selector.
var ErrInvalid = errclass.New(errclass.Invalid, "invalid selector of changed block tracking")

// Wanted reports whether the configuration wants the disks of vm tracked. Without a configuration it does not.
func Wanted(ctx context.Context, r client.Reader, configuration types.NamespacedName, vm *kubevirtv1.VirtualMachine) (bool, error) {
	kv, err := readConfiguration(ctx, r, configuration)
	if err != nil {
		return false, err
	}
	ns := &corev1.Namespace{}
	if err := r.Get(ctx, types.NamespacedName{Name: vm.Namespace}, ns); err != nil {
		return false, fmt.Errorf("get namespace %s: %w", vm.Namespace, err)
	}
	selected, err := tracking.Selected(kv, ns.Labels, vm.Labels)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return selected, nil
}

// GateOn reports whether feature gate IncrementalBackup is on. Without a configuration it is off.
func GateOn(ctx context.Context, r client.Reader, configuration types.NamespacedName) (bool, error) {
	kv, err := readConfiguration(ctx, r, configuration)
	return err == nil && tracking.GateEnabled(kv, kubevirtv1.IncrementalBackup), err
}

// readConfiguration returns the configuration, or nil when there is none.
func readConfiguration(ctx context.Context, r client.Reader, configuration types.NamespacedName) (*kubevirtv1.KubeVirt, error) {
	kv := &kubevirtv1.KubeVirt{}
	err := r.Get(ctx, configuration, kv)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get the configuration %s: %w", configuration, err)
	}
	return kv, nil
}
