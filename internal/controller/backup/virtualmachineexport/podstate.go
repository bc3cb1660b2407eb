package virtualmachineexport

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
)

// whyPodDoesNotServe returns why a pod that has neither ended nor been deleted does not serve, or nil.
func whyPodDoesNotServe(pod *corev1.Pod) *obstacle {
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			return nil
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			return waitFor(exportv1.ReasonPodPending, "Pod %s cannot be scheduled: %s", pod.Name, c.Message)
		}
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" {
			last := ""
			if t := s.LastTerminationState.Terminated; t != nil {
				last = " It ended with exit code " + fmt.Sprint(t.ExitCode) + endSentence(": ", t.Message)
			}
			return waitFor(exportv1.ReasonPodNotReady, "Pod %s waits: %s%s%s", pod.Name, w.Reason, endSentence(": ", w.Message), last)
		}
	}
	if pod.Status.Phase == corev1.PodRunning {
		return waitFor(exportv1.ReasonPodNotReady, "Pod %s runs and cannot serve yet; if that lasts, look at its log.", pod.Name)
	}
	return waitFor(exportv1.ReasonPodPending, "Pod %s is starting; if it does not come up, check its events.", pod.Name)
}

// endSentence returns separator, text and a period, or a period alone if there is no text.
func endSentence(separator, text string) string {
	text = strings.TrimRight(strings.TrimSpace(text), ".")
	if text == "" {
		return "."
	}
	return separator + text + "."
}

// whyPodEnded says what the pod's status tells of its end.
func whyPodEnded(pod *corev1.Pod) string {
	words := []string{string(pod.Status.Phase)}
	for _, w := range []string{pod.Status.Reason, pod.Status.Message} {
		if w = strings.TrimRight(strings.TrimSpace(w), "."); w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, ", ")
}

// podHistory is what the controller remembers of an export's pods. It is lost with the process, which costs a wait.
type podHistory struct {
	// created is how many pods were created since one has served, and 1 when one has.
	created int
	// last is when the latest one was created.
	last time.Time
}

// maxPodDelay is the longest time between two creations of an export's pod.
const maxPodDelay = time.Minute

// notBefore returns when the next pod may be created: the delay doubles with each pod that has never served.
func (h podHistory) notBefore() time.Time {
	if h.created == 0 {
		return time.Time{}
	}
	delay := maxPodDelay
	if h.created < 7 {
		delay = time.Second << (h.created - 1)
	}
	return h.last.Add(delay)
}
