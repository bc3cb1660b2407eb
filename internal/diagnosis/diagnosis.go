// Package diagnosis says why a pod or a Job does not run, and what was last wrong with an object, from their status and their events.
package diagnosis

import (
	"context"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// LastWarning returns the reason and the message of the latest warning about an object; "" if there is none. live reads from the API server:
// nobody caches events. If they cannot be read, that is the answer.
func LastWarning(ctx context.Context, live client.Reader, o client.Object) string {
	var list corev1.EventList
	if err := live.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.MatchingFields{"involvedObject.uid": string(o.GetUID())}); err != nil {
		return "its events cannot be read: " + err.Error()
	}
	return LatestWarning(list.Items, "")
}

// LatestWarning returns the reason and the message of the latest warning among events whose message known does not contain; "" if there is none.
func LatestWarning(events []corev1.Event, known string) string {
	var latest *corev1.Event
	for i := range events {
		event := &events[i]
		if event.Type != corev1.EventTypeWarning || known != "" && strings.Contains(known, strings.TrimSpace(event.Message)) {
			continue
		}
		if latest == nil || eventTime(event).After(eventTime(latest)) {
			latest = event
		}
	}
	switch {
	case latest == nil:
		return ""
	case latest.Message == "":
		return latest.Reason
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

// WhyNotRunning says why a pod does not run: what its container waits for or ended with, or what the scheduler says, or else its last warning. It
// is "" if nothing says why.
func WhyNotRunning(ctx context.Context, live client.Reader, pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		state := pod.Status.ContainerStatuses[i].State
		switch {
		case state.Terminated != nil:
			return join(state.Terminated.Reason, state.Terminated.Message)
		case state.Waiting != nil && state.Waiting.Message != "":
			return join(state.Waiting.Reason, state.Waiting.Message)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	if pod.Status.Message != "" {
		return join(pod.Status.Reason, pod.Status.Message)
	}
	return LastWarning(ctx, live, pod)
}

// WhyJobWaits says why no pod of a Job runs. It is "" if one does, or has ended.
func WhyJobWaits(ctx context.Context, live client.Reader, job *batchv1.Job) string {
	pod, err := PodOfJob(ctx, live, job)
	switch {
	case err != nil:
		return "its pods cannot be read: " + err.Error()
	case pod == nil:
		return join("it has no pod", LastWarning(ctx, live, job))
	case pod.Status.Phase != corev1.PodPending:
		return ""
	}
	return join("its pod is Pending", WhyNotRunning(ctx, live, pod))
}

// PodOfJob returns the newest pod that a Job controls; nil if there is none. Others may have pods with the Job's labels.
func PodOfJob(ctx context.Context, live client.Reader, job *batchv1.Job) (*corev1.Pod, error) {
	var pods corev1.PodList
	if err := live.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
		return nil, err
	}
	var newest *corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		if metav1.IsControlledBy(pod, job) && (newest == nil || newest.CreationTimestamp.Before(&pod.CreationTimestamp)) {
			newest = pod
		}
	}
	return newest, nil
}

func join(reason, message string) string {
	return strings.Trim(strings.TrimSpace(reason)+": "+strings.TrimSpace(message), ": ")
}
