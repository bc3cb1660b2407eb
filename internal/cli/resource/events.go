package resource

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/output"
)

// ReadEvents reads the events of objects, oldest first.
func ReadEvents(ctx context.Context, c *cluster.Client, namespace string, uids ...types.UID) ([]corev1.Event, error) {
	var all []corev1.Event
	for _, uid := range uids {
		if uid == "" {
			continue
		}
		var list corev1.EventList
		selector := fields.OneTermEqualSelector("involvedObject.uid", string(uid))
		if err := c.List(ctx, &list, client.InNamespace(namespace), client.MatchingFieldsSelector{Selector: selector}); err != nil {
			return nil, fmt.Errorf("list events: %w", err)
		}
		all = append(all, list.Items...)
	}
	slices.SortStableFunc(all, func(a, b corev1.Event) int { return lastSeen(a).Compare(lastSeen(b)) })
	return all, nil
}

// lastSeen returns when an event last happened. The two event APIs fill in different fields.
func lastSeen(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	default:
		return e.CreationTimestamp.Time
	}
}

// WriteEvents writes a section with events.
func WriteEvents(p *output.Page, list []corev1.Event) {
	t := &output.Table{Header: []string{"AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"}}
	for _, e := range list {
		t.Add(p.Age(lastSeen(e)), e.Type, e.Reason, strings.ToLower(e.InvolvedObject.Kind)+"/"+e.InvolvedObject.Name, e.Message)
	}
	p.Section("Events", t, "none")
}
