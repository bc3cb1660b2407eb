package diagnosis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fakeEvents is an API server with events and pods alone.
type fakeEvents struct {
	client.Reader

	items []corev1.Event
	pods  []corev1.Pod
	err   error
}

func (f fakeEvents) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *corev1.EventList:
		l.Items = f.items
	case *corev1.PodList:
		l.Items = f.pods
	}
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

func TestWhyJobWaits(t *testing.T) {
	t.Parallel()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job", UID: "j"}}
	pod := func(owner *batchv1.Job, created int64, status corev1.PodStatus) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			CreationTimestamp: metav1.Unix(created, 0), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, batchv1.SchemeGroupVersion.WithKind("Job"))},
		}, Status: status}
	}
	running := corev1.PodStatus{Phase: corev1.PodRunning}
	pending := corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no node"}}}
	refused := []corev1.Event{event(corev1.EventTypeWarning, "exceeded quota", func(e *corev1.Event) { e.Reason = "FailedCreate" })}
	for name, c := range map[string]struct {
		live fakeEvents
		want string
	}{
		"no pod":                {fakeEvents{}, "it has no pod"},
		"no pod, with reason":   {fakeEvents{items: refused}, "it has no pod: FailedCreate: exceeded quota"},
		"another Job's pod":     {fakeEvents{pods: []corev1.Pod{pod(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{UID: "i"}}, 1, running)}}, "it has no pod"},
		"runs":                  {fakeEvents{items: refused, pods: []corev1.Pod{pod(job, 1, running)}}, ""},
		"has ended":             {fakeEvents{pods: []corev1.Pod{pod(job, 1, corev1.PodStatus{Phase: corev1.PodSucceeded})}}, ""},
		"pending":               {fakeEvents{pods: []corev1.Pod{pod(job, 1, pending)}}, "its pod is Pending: no node"},
		"the newest pod counts": {fakeEvents{pods: []corev1.Pod{pod(job, 2, running), pod(job, 1, pending)}}, ""},
		"it cannot be asked":    {fakeEvents{err: errors.New("forbidden")}, "its pods cannot be read: forbidden"},
	} {
		if got := WhyJobWaits(t.Context(), c.live, job); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
