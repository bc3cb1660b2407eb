package reconcile

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// WriteFinalizer adds a finalizer to an object, or removes it, if that is not done yet. It fails with a conflict if
// somebody else has written the object since it was read.
func WriteFinalizer(ctx context.Context, to client.Writer, o client.Object, finalizer string, wanted bool) error {
	change := controllerutil.RemoveFinalizer
	if wanted {
		change = controllerutil.AddFinalizer
	}
	base := o.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy of a client.Object
	if !change(o, finalizer) {
		return nil
	}
	if err := to.Patch(ctx, o, MergeFrom(base)); err != nil {
		return fmt.Errorf("write the finalizer: %w", err)
	}
	return nil
}
