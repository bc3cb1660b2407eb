package child

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/reconcile"
)

// annotationMade is on an owner all of whose children were made: its UID. A copy of the owner begins anew.
const annotationMade = layout.Prefix + "children-made"

// AreMade says whether all children of an owner were made: from then on, one that is not there was deleted.
func AreMade(owner client.Object) bool {
	return owner.GetAnnotations()[annotationMade] == string(owner.GetUID())
}

// NoteMade notes on an owner that all of its children were made.
func NoteMade[T client.Object](ctx context.Context, to client.Writer, owner T) error {
	base := owner.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy of a client.Object
	annotations := owner.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationMade] = string(owner.GetUID())
	owner.SetAnnotations(annotations)
	if err := to.Patch(ctx, owner, reconcile.MergeFrom(base)); err != nil {
		return fmt.Errorf("note that everything is made: %w", err)
	}
	return nil
}

// MarkEnded marks an owner that has ended and needs none of its helpers any more.
func MarkEnded(ctx context.Context, to client.Writer, owner client.Object) error {
	base := owner.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy of a client.Object
	labels := owner.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[layout.LabelEnded] = "true"
	owner.SetLabels(labels)
	return to.Patch(ctx, owner, reconcile.MergeFrom(base))
}

// GoesOn selects the owners that are not marked as ended, and those that are deleted.
func GoesOn() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetLabels()[layout.LabelEnded] == "" || o.GetDeletionTimestamp() != nil
	})
}
