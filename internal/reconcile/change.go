package reconcile

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// MoreThanVersion drops updates that change nothing that the cache has: the heartbeats of nodes, and what a transform takes away.
func MoreThanVersion() predicate.Predicate {
	without := func(o client.Object) client.Object {
		c, _ := o.DeepCopyObject().(client.Object)
		c.SetResourceVersion("")
		c.SetGeneration(0)
		return c
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(without(e.ObjectOld), without(e.ObjectNew))
	}}
}
