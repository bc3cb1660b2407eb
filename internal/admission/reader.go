package admission

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxReads is how many objects are read at a time, for all requests together.
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
	select {
	case r.places <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-r.places }()
	return r.Reader.Get(ctx, key, obj, opts...)
}
