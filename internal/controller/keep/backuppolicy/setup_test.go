package backuppolicy

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// A running machine's status changes all the time, and so does that of a schedule. Neither wakes a policy.
func TestPredicates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit              func(*metav1.PartialObjectMetadata)
		machine, schedule bool
	}{
		"status": {func(o *metav1.PartialObjectMetadata) { o.ResourceVersion = "2" }, false, false},
		"labels": {func(o *metav1.PartialObjectMetadata) { o.Labels = map[string]string{"tier": "silver"} }, true, true},
		"deletion": {func(o *metav1.PartialObjectMetadata) {
			o.Generation, o.DeletionTimestamp = 2, &metav1.Time{}
		}, true, true},
		"spec": {func(o *metav1.PartialObjectMetadata) { o.Generation = 2 }, false, true},
		"annotations": {func(o *metav1.PartialObjectMetadata) {
			o.Annotations = map[string]string{"note": "x"}
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := newMachine("web", gold)
			before.Generation, before.ResourceVersion = 1, "1"
			after := before.DeepCopy()
			c.edit(after)
			update := event.UpdateEvent{ObjectOld: &before, ObjectNew: after}
			for what, p := range map[string]struct {
				predicate predicate.Predicate
				want      bool
			}{"machine": {changesSelection(), c.machine}, "schedule": {changesSchedule(), c.schedule}} {
				if got := p.predicate.Update(update); got != p.want {
					t.Errorf("of a %s: %v, want %v", what, got, p.want)
				}
			}
		})
	}
}
