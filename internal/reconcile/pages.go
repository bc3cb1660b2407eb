package reconcile

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ListPages lists objects a page at a time, which bounds the memory that many of them take, and calls visit with
// each page. newList returns an empty list. ListPages stops at the first error, also one of visit.
func ListPages[L client.ObjectList](
	ctx context.Context, r client.Reader, pageSize int64, newList func() L, visit func(L) error,
	opts ...client.ListOption,
) error {
	next := ""
	for {
		page := newList()
		if err := r.List(ctx, page, append([]client.ListOption{client.Limit(pageSize), client.Continue(next)},
			opts...)...); err != nil {
			return err
		}
		if err := visit(page); err != nil {
			return err
		}
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}
