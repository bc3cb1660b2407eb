package child

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Movements are DataUploads or DataDownloads by the names of the volumes that they move.
type Movements[T client.Object] map[string]T

// Read reads the owner's DataUpload or DataDownload of a volume into o, and adds it if it is there.
func (all Movements[T]) Read(ctx context.Context, m Maker, owner types.UID, volume string, key types.NamespacedName, o T) error {
	have, err := reconcile.Find(ctx, m.Live, key, client.Object(o))
	if err != nil {
		return err
	}
	if have != nil && have.GetLabels()[m.Label] == string(owner) {
		all[volume] = o
	}
	return nil
}

// Cancel cancels those that have not ended, and says whether all have.
func (all Movements[T]) Cancel(ctx context.Context, to client.Writer) (ended bool, err error) {
	ended = true
	for _, o := range all {
		phase, cancel := stateOf(o)
		if phase.Ended() {
			continue
		}
		ended = false
		if *cancel || o.GetDeletionTimestamp() != nil {
			continue
		}
		base := o.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy of a client.Object
		*cancel = true
		if err := to.Patch(ctx, o, reconcile.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("cancel %s %s: %w", kindOf(o), client.ObjectKeyFromObject(o), err)
		}
	}
	return ended, nil
}

// stateOf returns the phase of a DataUpload or a DataDownload, and its field spec.cancel.
func stateOf(o client.Object) (velerov2.Phase, *bool) {
	switch o := o.(type) {
	case *velerov2.DataUpload:
		return o.Status.Phase, &o.Spec.Cancel
	case *velerov2.DataDownload:
		return o.Status.Phase, &o.Spec.Cancel
	default:
		panic(fmt.Sprintf("%T is neither a DataUpload nor a DataDownload", o))
	}
}
