package condition

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

func TestSet_keepsTheTimeOfTheLastTransition(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	ready := kubevirtv1.Condition{Type: kubevirtv1.ConditionReady, Status: corev1.ConditionFalse, Reason: "A"}

	conditions := Set(nil, ready, first)
	again := Set(conditions, ready, first.Add(time.Hour))
	if diff := cmp.Diff(conditions, again); diff != "" {
		t.Errorf("setting the same again changed it: %s", diff)
	}
	ready.Reason = "B"
	other := Set(conditions, ready, first.Add(time.Hour))
	if c := Find(other, kubevirtv1.ConditionReady); c.Reason != "B" || !c.LastTransitionTime.Equal(&conditions[0].LastTransitionTime) {
		t.Errorf("a new reason: %+v", c)
	}
	ready.Status = corev1.ConditionTrue
	flipped := Set(conditions, ready, first.Add(time.Hour))
	if got := Find(flipped, kubevirtv1.ConditionReady).LastTransitionTime.Time; !got.Equal(first.Add(time.Hour).Truncate(time.Second)) {
		t.Errorf("a new status: transition at %s", got)
	}
	if !True(flipped, kubevirtv1.ConditionReady) || True(conditions, kubevirtv1.ConditionReady) {
		t.Error("the argument of Set was modified, or True is wrong")
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	conditions := []kubevirtv1.Condition{{Type: "A"}, {Type: "B"}, {Type: "C"}}
	got := Remove(conditions, "A", "C", "D")
	if len(got) != 1 || got[0].Type != "B" || len(conditions) != 3 || conditions[0].Type != "A" {
		t.Errorf("got %+v from %+v", got, conditions)
	}
}
