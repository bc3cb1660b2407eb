// Package condition reads and changes the conditions of a VirtualMachine or a VirtualMachineInstance. They have
// KubeVirt's shape, which apimachinery's functions for metav1.Condition do not take. Every function is pure.
package condition

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// Find returns the condition of type t, or nil.
func Find(conditions []kubevirtv1.Condition, t kubevirtv1.ConditionType) *kubevirtv1.Condition {
	i := slices.IndexFunc(conditions, func(c kubevirtv1.Condition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return &conditions[i]
}

// True reports whether the condition of type t exists and is True.
func True(conditions []kubevirtv1.Condition, t kubevirtv1.ConditionType) bool {
	c := Find(conditions, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Set returns conditions with c in them. If c's status is new, now becomes its lastTransitionTime; otherwise the old
// time stays, so that setting a condition that is already there changes nothing. The argument is not modified.
func Set(conditions []kubevirtv1.Condition, c kubevirtv1.Condition, now time.Time) []kubevirtv1.Condition {
	conditions = slices.Clone(conditions)
	c.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
	old := Find(conditions, c.Type)
	if old == nil {
		return append(conditions, c)
	}
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	c.LastProbeTime = old.LastProbeTime
	*old = c
	return conditions
}

// Remove returns conditions without those of the given types. The argument is not modified.
func Remove(conditions []kubevirtv1.Condition, types ...kubevirtv1.ConditionType) []kubevirtv1.Condition {
	return slices.DeleteFunc(slices.Clone(conditions), func(c kubevirtv1.Condition) bool { return slices.Contains(types, c.Type) })
}
