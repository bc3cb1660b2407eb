package reconcile

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Find reads an object into o and returns o. It returns nil and no error if there is none. No object has an impossible name, for which the API
// server is not asked.
func Find[T client.Object](ctx context.Context, from client.Reader, key types.NamespacedName, o T) (T, error) {
	var none T
	if key.Name == "" || len(content.IsPathSegmentName(key.Name)) > 0 {
		return none, nil
	}
	err := from.Get(ctx, key, o)
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("get %T %s: %w", o, key, err)
	}
	return o, nil
}
