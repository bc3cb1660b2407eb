package migration

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

func findCondition(
	conditions []kubevirtv1.MigrationCondition, t kubevirtv1.MigrationConditionType,
) *kubevirtv1.MigrationCondition {
	i := slices.IndexFunc(conditions, func(c kubevirtv1.MigrationCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return &conditions[i]
}

// setCondition sets a condition to True. Its time stays if it was True.
func (d *decision) setCondition(in input, t kubevirtv1.MigrationConditionType, p *problem) {
	if c := findCondition(d.Status.Conditions, t); c != nil {
		c.Reason, c.Message = p.Reason, p.Message
		return
	}
	d.Status.Conditions = append(d.Status.Conditions, kubevirtv1.MigrationCondition{
		Type: t, Status: corev1.ConditionTrue, Reason: p.Reason, Message: p.Message,
		LastTransitionTime: metav1.NewTime(in.Now).Rfc3339Copy(),
	})
}

func (d *decision) removeConditions(types ...kubevirtv1.MigrationConditionType) {
	d.Status.Conditions = slices.DeleteFunc(d.Status.Conditions,
		func(c kubevirtv1.MigrationCondition) bool { return slices.Contains(types, c.Type) })
}
