package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
)

// page is a description being written: fields, then sections with tables. It keeps the first write error.
type page struct {
	w   io.Writer
	now time.Time
	err error
}

// fields writes names and values in two columns. It leaves out empty values.
func (p *page) fields(pairs ...string) {
	t := &table{gap: 2}
	for pair := range slices.Chunk(pairs, 2) {
		if value := human.Line(pair[1]); value != "" {
			t.rows = append(t.rows, []string{pair[0] + ":", value})
		}
	}
	p.keep(t.write(p.w))
}

// section writes a table below a title, indented. An empty one says so.
func (p *page) section(title string, t *table, none string) {
	if len(t.rows) == 0 {
		if none != "" {
			_, err := fmt.Fprintf(p.w, "\n%s: %s\n", title, none)
			p.keep(err)
		}
		return
	}
	var text strings.Builder
	p.keep(t.write(&text))
	_, err := fmt.Fprintf(p.w, "\n%s:\n", title)
	p.keep(err)
	for line := range strings.Lines(text.String()) {
		_, err := fmt.Fprintf(p.w, "  %s\n", strings.TrimRight(line, " \n"))
		p.keep(err)
	}
}

func (p *page) keep(err error) {
	if p.err == nil {
		p.err = err
	}
}

// age returns how long ago t was.
func (p *page) age(t time.Time) string { return human.Age(p.now, t) }

// moment returns t and how long ago it was.
func (p *page) moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), p.age(t))
}

// events reads the events of objects, oldest first.
func events(ctx context.Context, c *cluster.Client, namespace string, uids ...types.UID) ([]corev1.Event, error) {
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

func (p *page) events(list []corev1.Event) {
	t := &table{header: []string{"AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"}}
	for _, e := range list {
		t.add(p.age(lastSeen(e)), e.Type, e.Reason, strings.ToLower(e.InvolvedObject.Kind)+"/"+e.InvolvedObject.Name, e.Message)
	}
	p.section("Events", t, "none")
}

// timestamp returns a moment that may not be known yet.
func (p *page) timestamp(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return p.moment(t.Time)
}
