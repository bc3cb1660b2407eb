package exposer

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lastWarning returns the message of the latest warning about an object in Varve's namespace, or "".
func (a Access) lastWarning(ctx context.Context, o client.Object) string {
	list := &corev1.EventList{}
	err := a.Live.List(ctx, list, client.InNamespace(o.GetNamespace()), client.MatchingFields{"involvedObject.uid": string(o.GetUID())})
	if err != nil {
		return "its events cannot be read: " + err.Error()
	}
	var latest *corev1.Event
	for i := range list.Items {
		event := &list.Items[i]
		if event.Type == corev1.EventTypeWarning && (latest == nil || eventTime(event).After(eventTime(latest))) {
			latest = event
		}
	}
	if latest == nil {
		return ""
	}
	return latest.Reason + ": " + latest.Message
}

func eventTime(event *corev1.Event) time.Time {
	switch {
	case event.Series != nil:
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	}
	return event.CreationTimestamp.Time
}

// withDetail adds what is known of the reason to what is waited for.
func withDetail(what, detail string) string {
	if detail = strings.TrimSpace(detail); detail == "" {
		return what
	}
	return what + " (" + detail + ")"
}
