package virtualmachineinstance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
)

// outcome is how an instance ended.
type outcome struct {
	phase           kubevirtv1.Phase
	reason, message string
	// neverStarted says that the launcher was never told to start a guest, so nothing was written to the claims.
	neverStarted bool
}

// outcomeOfPod returns how the instance ended, as far as the pod tells, or nil if it did not. A positive wait is when to
// look again.
func outcomeOfPod(in input) (*outcome, time.Duration) {
	before := !handedOver(in.Instance.Status.Phase)
	deletedBefore := before && in.Instance.DeletionTimestamp != nil
	switch {
	case in.Pod == nil && deletedBefore:
		return deletedBeforeStart(), 0
	case in.Pod == nil && (in.Instance.Status.Phase == "" || in.Instance.Status.Phase == kubevirtv1.PhasePending):
		return nil, 0
	case in.Pod == nil:
		return podLost("The launcher pod is gone."), 0
	case instancepod.HasEnded(in.Pod) && deletedBefore:
		return deletedBeforeStart(), 0
	case in.Pod.Status.Phase == corev1.PodSucceeded:
		reason, message := computeMessage(in.Pod)
		if reason == ReasonGuestLost {
			return explainFailure(in.Pod), 0
		}
		if !slices.Contains([]string{ReasonGuestStopped, ReasonGuestKilled}, reason) {
			reason = ReasonGuestShutdown
		}
		return &outcome{kubevirtv1.PhaseSucceeded, reason, cmp.Or(message, "The guest shut down."), neverStarted(in.Pod)}, 0
	case in.Pod.Status.Phase == corev1.PodFailed:
		return explainFailure(in.Pod), 0
	default:
		return outcomeOfAbandonedPod(in, deletedBefore)
	}
}

// outcomeOfAbandonedPod handles a deleted pod whose kubelet may never report its end. The object stays because of the launcher
// pod's finalizer.
func outcomeOfAbandonedPod(in input, deletedBefore bool) (*outcome, time.Duration) {
	if over, wait := podOver(in.Pod, in.Now); !over {
		return nil, wait
	}
	if deletedBefore {
		return deletedBeforeStart(), 0
	}
	return podLost(fmt.Sprintf("The launcher pod %s was deleted and its node did not report its end.", in.Pod.Name)), 0
}

// podOver reports whether the pod has ended, or was force-deleted and its kubelet has had its time to report the
// end. A positive wait is when to look again.
func podOver(pod *corev1.Pod, now time.Time) (bool, time.Duration) {
	switch {
	case instancepod.HasEnded(pod):
		return true, 0
	case pod.DeletionTimestamp == nil || ptr.Deref(pod.DeletionGracePeriodSeconds, 1) > 0:
		return false, 0
	case pod.Spec.NodeName == "":
		return true, 0
	}
	left := pod.DeletionTimestamp.Add(forcedGrace).Sub(now)
	return left <= 0, max(left, 0)
}

func deletedBeforeStart() *outcome {
	return &outcome{phase: kubevirtv1.PhaseSucceeded, reason: ReasonDeletedBeforeStart, message: "The instance was deleted before its guest was started."}
}

func podLost(message string) *outcome {
	return &outcome{phase: kubevirtv1.PhaseFailed, reason: ReasonPodLost, message: message}
}

// explainFailure says why a pod failed. It looks, in this order, at what Kubernetes did to the pod, at the init
// containers, at what the launcher said, and at how its container ended.
func explainFailure(pod *corev1.Pod) *outcome {
	if pod.Status.Reason != "" {
		message := cmp.Or(pod.Status.Message, fmt.Sprintf("Kubernetes ended the launcher pod %s.", pod.Name))
		return &outcome{phase: kubevirtv1.PhaseFailed, reason: pod.Status.Reason, message: message, neverStarted: neverStarted(pod)}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return &outcome{phase: kubevirtv1.PhaseFailed, reason: ReasonInitFailed, message: fmt.Sprintf("Init container %s: %s", s.Name, describeExit(t))}
		}
	}
	reason, message := computeMessage(pod)
	return &outcome{kubevirtv1.PhaseFailed, cmp.Or(reason, ReasonLauncherFailed), cmp.Or(message, "The launcher pod failed."), neverStarted(pod)}
}

// ends maps the launcher's words for how a guest ended, as in State.End of launcher.proto, to reasons.
var ends = map[string]string{
	"GUEST_SHUTDOWN":     ReasonGuestShutdown,
	"REQUESTED_SHUTDOWN": ReasonGuestStopped,
	"KILLED":             ReasonGuestKilled,
	"CRASHED":            ReasonGuestCrashed,
	"START_FAILED":       ReasonStartFailed,
	"MIGRATED":           ReasonGuestLost,
}

// computeMessage returns what the launcher left as its termination message: JSON with its word for the end and a
// message for people. A launcher that died without leaving one has the end of its log there instead.
func computeMessage(pod *corev1.Pod) (reason, message string) {
	for _, s := range pod.Status.ContainerStatuses {
		t := s.State.Terminated
		if s.Name != computeContainer || t == nil {
			continue
		}
		if said, ok := lastWord(t); ok {
			return ends[said.End], said.Message
		}
		if t.Reason != "Completed" && t.Reason != "Error" && camelCase.MatchString(t.Reason) {
			reason = t.Reason // for example OOMKilled
		}
		if t.ExitCode == 0 {
			return reason, strings.TrimSpace(t.Message)
		}
		return reason, describeExit(t)
	}
	return "", ""
}

// neverStarted reports whether the launcher left word that it was never told to start a guest. A launcher that left
// no word, or is of an older version, may have been told. So may the previous container of a pod whose container
// runs once more. A kubelet restarts the container even in a pod that is never to be restarted if the container
// runtime has lost its containers, for example when the node restarts.
func neverStarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		t := s.State.Terminated
		if s.Name != computeContainer || t == nil || s.RestartCount > 0 || s.LastTerminationState.Terminated != nil {
			return false
		}
		said, ok := lastWord(t)
		return ok && said.NeverStarted
	})
}

// word is what a launcher leaves as its termination message.
type word struct {
	End, Message string
	NeverStarted bool
}

// lastWord returns the word that a launcher left. ok is false if it left none that this version knows.
func lastWord(t *corev1.ContainerStateTerminated) (said word, ok bool) {
	err := json.Unmarshal([]byte(t.Message), &said)
	return said, err == nil && ends[said.End] != ""
}

// camelCase is what a reason looks like.
var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,63}$`)

func describeExit(t *corev1.ContainerStateTerminated) string {
	if text := strings.TrimSpace(t.Message); text != "" {
		return text
	}
	return fmt.Sprintf("ended with exit code %d (%s)", t.ExitCode, cmp.Or(t.Reason, "no reason given"))
}
