package admission

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxReads is how many objects, or pages of a list, are read at a time, for all requests together.
const maxReads = 8

// limitedReader bounds what those who send requests to the webhook can make it ask of the API server.
type limitedReader struct {
	client.Reader
	places chan struct{}
}

func newLimitedReader(r client.Reader) *limitedReader {
	return &limitedReader{Reader: r, places: make(chan struct{}, maxReads)}
}

// Get implements client.Reader. It waits until it may read, as long as ctx allows.
func (r *limitedReader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if err := r.takePlace(ctx); err != nil {
		return err
	}
	defer r.leavePlace()
	return r.Reader.Get(ctx, key, obj, opts...)
}

// List implements client.Reader. It waits as Get does. A list that is read in pages takes a place for each page.
func (r *limitedReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := r.takePlace(ctx); err != nil {
		return err
	}
	defer r.leavePlace()
	return r.Reader.List(ctx, list, opts...)
}

func (r *limitedReader) takePlace(ctx context.Context) error {
	select {
	case r.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *limitedReader) leavePlace() { <-r.places }
