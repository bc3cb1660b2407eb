package diagnosis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fakeEvents is an API server with events alone.
type fakeEvents struct {
	client.Reader

	items []corev1.Event
	err   error
}

func (f fakeEvents) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*corev1.EventList).Items = f.items
	return f.err
}

func event(kind, message string, edit func(*corev1.Event)) corev1.Event {
	e := corev1.Event{Type: kind, Reason: "FailedMount", Message: message}
	edit(&e)
	return e
}

func TestLastWarning_isTheLatest(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	events := []corev1.Event{
		event(corev1.EventTypeWarning, "series", func(e *corev1.Event) { e.Series = &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(at(5))} }),
		event(corev1.EventTypeWarning, "last", func(e *corev1.Event) { e.LastTimestamp = metav1.NewTime(at(4)) }),
		event(corev1.EventTypeWarning, "event", func(e *corev1.Event) { e.EventTime = metav1.NewMicroTime(at(3)) }),
		event(corev1.EventTypeWarning, "created", func(e *corev1.Event) { e.CreationTimestamp = metav1.NewTime(at(2)) }),
	}
	pod := &corev1.Pod{}
	for i, want := range []string{"series", "last", "event", "created"} {
		all := append([]corev1.Event{event(corev1.EventTypeNormal, "normal", func(e *corev1.Event) { e.LastTimestamp = metav1.NewTime(at(9)) })}, events[i:]...)
		if got := LastWarning(t.Context(), fakeEvents{items: all}, pod); got != "FailedMount: "+want {
			t.Errorf("%q, want %s", got, want)
		}
	}
	if got := LastWarning(t.Context(), fakeEvents{}, pod); got != "" {
		t.Error(got)
	}
	if got := LastWarning(t.Context(), fakeEvents{err: errors.New("forbidden")}, pod); !strings.Contains(got, "forbidden") {
		t.Error(got)
	}
}

// What is known already is not said again.
func TestLatestWarning_leavesOutWhatIsKnown(t *testing.T) {
	t.Parallel()
	events := []corev1.Event{
		event(corev1.EventTypeWarning, "0/2 nodes are available ", func(e *corev1.Event) { e.LastTimestamp = metav1.NewTime(time.Unix(2, 0)) }),
		event(corev1.EventTypeWarning, "access denied", func(e *corev1.Event) { e.LastTimestamp = metav1.NewTime(time.Unix(1, 0)) }),
	}
	if got := LatestWarning(events, "Unschedulable: 0/2 nodes are available"); got != "FailedMount: access denied" {
		t.Error(got)
	}
	if got := LatestWarning(events[1:], "access denied"); got != "" {
		t.Error(got)
	}
	if got := LatestWarning([]corev1.Event{event(corev1.EventTypeWarning, "", func(*corev1.Event) {})}, ""); got != "FailedMount" {
		t.Error(got)
	}
}

func TestWhyNotRunning(t *testing.T) {
	t.Parallel()
	warned := fakeEvents{items: []corev1.Event{event(corev1.EventTypeWarning, "access denied", func(*corev1.Event) {})}}
	container := func(s corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: s}}}
	}
	for want, status := range map[string]corev1.PodStatus{
		"ErrImagePull: no such image": container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}}),
		"Error: unknown command":      container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", Message: "unknown command\n"}}),
		"OOMKilled":                   container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}}),
		"0/2 nodes are available":     {Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available"}}},
		"Evicted: low on memory":      {Reason: "Evicted", Message: "low on memory"},
		"FailedMount: access denied":  container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}),
	} {
		if got := WhyNotRunning(t.Context(), warned, &corev1.Pod{Status: status}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := WhyNotRunning(t.Context(), fakeEvents{}, &corev1.Pod{}); got != "" {
		t.Error(got)
	}
}
