package reconcile

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// WriteStatus writes the status of an object if it differs from base, which is a copy from before nothing but the
// status was changed. It fails with a conflict if somebody else has written the object since it was read.
func WriteStatus(ctx context.Context, to client.StatusClient, base, o client.Object) error {
	if equality.Semantic.DeepEqual(base, o) {
		return nil
	}
	if err := to.Status().Patch(ctx, o, MergeFrom(base)); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}
