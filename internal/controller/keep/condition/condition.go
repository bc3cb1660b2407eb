// Package condition writes conditions as Harvester has them, whose times are texts.
package condition

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// Set writes a condition. One that stays as it is keeps its times.
func Set(all *[]harvesterv1.Condition, now time.Time, of harvesterv1.ConditionType, status corev1.ConditionStatus, reason, message string) {
	text := now.UTC().Format(time.RFC3339)
	i := slices.IndexFunc(*all, func(c harvesterv1.Condition) bool { return c.Type == of })
	if i < 0 {
		*all = append(*all, harvesterv1.Condition{
			Type: of, Status: status, LastUpdateTime: text,
			LastTransitionTime: text, Reason: reason, Message: message,
		})
		return
	}
	c := &(*all)[i]
	if c.Status == status && c.Reason == reason && c.Message == message {
		return
	}
	if c.Status != status {
		c.LastTransitionTime = text
	}
	c.Status, c.Reason, c.Message, c.LastUpdateTime = status, reason, message, text
}

// Find returns a condition, or nil.
func Find(all []harvesterv1.Condition, of harvesterv1.ConditionType) *harvesterv1.Condition {
	i := slices.IndexFunc(all, func(c harvesterv1.Condition) bool { return c.Type == of })
	if i < 0 {
		return nil
	}
	return &all[i]
}
