package virtualmachineinstance

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
)

// input is everything that the decision depends on.
type input struct {
	// Now is the time that deadlines are measured against.
	Now time.Time
	// Instance is not modified.
	Instance *kubevirtv1.VirtualMachineInstance
	// Pod is the launcher pod that has the guest, or nil if the API server has none.
	Pod *corev1.Pod
	// Target is the target pod of a migration that has not ended, or nil if the API server has none.
	Target *corev1.Pod
	// Others are the instance's launcher pods besides Pod, with Target among them, and the pods that bring a migration's
	// token to a node.
	Others []*corev1.Pod
	// Migrations are the UIDs of the instance's migrations that exist and are not in a final phase.
	Migrations map[types.UID]bool
	// NotMigratable says why the guest cannot be moved. It is nil if it can.
	NotMigratable *obstacle
	// Attachments is the number of attachment pods that exist.
	Attachments int
	// Missing says what the launcher pod needs and does not have. It is nil if nothing is missing.
	Missing *obstacle
	// Unbound are the instance's claims that have no volume yet.
	Unbound []unboundClaim
	// StopWaitsForBackup is how long the handler may delay a stop for a running backup.
	StopWaitsForBackup time.Duration
}

// obstacle is why something cannot proceed, in the words of a condition.
type obstacle struct{ Reason, Message string }

// unboundClaim is a claim without a volume.
type unboundClaim struct {
	Name string
	// Immediate says that its storage class binds without waiting for a pod.
	Immediate bool
}

// decision is what to do. The finalizer and the label are written first, then Status, then the pod; the finalizer
// is removed last.
type decision struct {
	Status kubevirtv1.VirtualMachineInstanceStatus
	// NodeLabel is the value that the label kubevirt.io/nodeName must have. If empty, the label stays as it is.
	NodeLabel string
	// CreatePod makes the launcher pod; DeletePod deletes it, with its grace period.
	CreatePod, DeletePod bool
	// Overdue says that the pod is deleted because the node's handler did not stop the guest in time.
	Overdue bool
	// GiveBack takes the instance's runs back from its claims before Status is written, because its guest was never
	// started.
	GiveBack bool
	// ReleasePod removes the launcher pod's finalizer, because its end is recorded.
	ReleasePod bool
	// ReleaseOthers are pods that lose their finalizer, and DeleteOthers pods that are deleted, with their grace period.
	ReleaseOthers, DeleteOthers []*corev1.Pod
	// Released removes the instance's finalizer.
	Released bool
	// RequeueAfter is when the decision changes by the passage of time alone. 0: never.
	RequeueAfter time.Duration
}

const (
	// handlerGrace is the time that a handler has beyond the guest's grace period to stop the guest of a deleted
	// instance. After that the controller deletes the launcher pod itself.
	handlerGrace = 60 * time.Second
	// forcedGrace is how long a kubelet may take to report the end of a pod that was force-deleted.
	forcedGrace = 30 * time.Second
	// defaultGrace is the grace period in seconds of an instance without spec.terminationGracePeriodSeconds.
	defaultGrace = 30
)

// decide says what an instance needs now.
func decide(in input) decision {
	d := decision{Status: *in.Instance.Status.DeepCopy()}
	if d.Status.Phase == "" {
		d.enterPhase(in, kubevirtv1.PhasePending)
	}
	if !d.Status.Phase.Final() {
		d.endMigration(in)
		d.followPod(in)
	}
	d.followMove(in)
	d.setMigratable(in)
	d.removeOthers(in)
	// The node's handler finds its instances by the label, so the label is restored if somebody removed it.
	d.NodeLabel = d.Status.NodeName
	d.ReleasePod = in.Pod != nil && d.Status.Phase.Final()
	if in.Instance.DeletionTimestamp != nil {
		d.finishDeletion(in)
	}
	return d
}

// followPod follows the launcher pod, or asks for it.
func (d *decision) followPod(in input) {
	end, wait := outcomeOfPod(in)
	d.RequeueAfter = shorterWait(d.RequeueAfter, wait)
	if end != nil {
		if !d.awaitMigration(in) {
			d.enterFinalPhase(in, *end)
		}
		return
	}
	if in.Pod == nil {
		d.requestPod(in)
		return
	}
	if phase := d.Status.Phase; phase == kubevirtv1.PhasePending || phase == kubevirtv1.PhaseScheduling {
		d.mirrorScheduling(in)
	}
}

// requestPod asks for the launcher pod once everything that it needs exists. Only a Pending instance gets here.
func (d *decision) requestPod(in input) {
	d.notRunning(in)
	if in.Missing != nil {
		d.setObstacle(in, kubevirtv1.ConditionSynchronized, in.Missing)
		return
	}
	d.CreatePod = true
}

// mirrorScheduling mirrors the launcher pod's way to a node, and hands the instance over to the node's handler once the
// launcher runs.
func (d *decision) mirrorScheduling(in input) {
	if d.Status.Phase == kubevirtv1.PhasePending {
		d.enterPhase(in, kubevirtv1.PhaseScheduling)
	}
	if in.Instance.DeletionTimestamp == nil && in.Pod.DeletionTimestamp == nil && launcherRuns(in.Pod) {
		d.handOver(in)
		return
	}
	d.notRunning(in)
	d.setObstacle(in, kubevirtv1.ConditionPodScheduled, whyUnscheduled(in))
	d.setObstacle(in, kubevirtv1.ConditionSynchronized, whyPodIsStuck(in.Pod))
}

func (d *decision) handOver(in input) {
	node := in.Pod.Spec.NodeName
	d.enterPhase(in, kubevirtv1.PhaseScheduled)
	d.Status.NodeName = node
	if d.Status.ActivePods == nil {
		d.Status.ActivePods = map[types.UID]string{}
	}
	d.Status.ActivePods[in.Pod.UID] = node
	d.setObstacle(in, kubevirtv1.ConditionPodScheduled, nil)
	d.setObstacle(in, kubevirtv1.ConditionSynchronized, nil)
}

// finishDeletion takes a deleted instance apart: first the guest, then the launcher pod, and the finalizer last.
func (d *decision) finishDeletion(in input) {
	d.CreatePod = false
	if in.Pod == nil {
		d.Released = d.Status.Phase.Final() && in.Attachments == 0 && !slices.ContainsFunc(in.Others, isLauncherPod)
		return
	}
	if in.Pod.DeletionTimestamp != nil {
		return
	}
	if d.Status.Phase.Final() || !handedOver(d.Status.Phase) {
		d.DeletePod = true
		return
	}
	if left := stopDeadline(in).Sub(in.Now); left > 0 {
		d.RequeueAfter = left
		return
	}
	d.DeletePod, d.Overdue = true, true
}

func handedOver(p kubevirtv1.Phase) bool {
	return p == kubevirtv1.PhaseScheduled || p == kubevirtv1.PhaseRunning
}

// stopDeadline returns the time by which the handler must have stopped the guest of a deleted instance. While the
// stop waits for a backup, the deadline is later by that wait's limit. Once the wait is over, the deadline counts
// from its end.
func stopDeadline(in input) time.Time {
	from := in.Instance.DeletionTimestamp.Time
	if c := condition.Find(in.Instance.Status.Conditions, kubevirtv1.ConditionStopDelayed); c != nil {
		if c.Status == corev1.ConditionTrue {
			from = from.Add(in.StopWaitsForBackup)
		} else if c.LastTransitionTime.After(from) {
			from = c.LastTransitionTime.Time
		}
	}
	grace := ptr.Deref(in.Instance.Spec.TerminationGracePeriodSeconds, defaultGrace)
	return from.Add(time.Duration(grace)*time.Second + handlerGrace)
}

// enterFinalPhase enters a final phase. It removes what the handler reported of a running guest, which is no longer true.
func (d *decision) enterFinalPhase(in input, o outcome) {
	d.enterPhase(in, o.phase)
	d.Status.Reason = o.reason
	d.GiveBack = o.neverStarted && in.Instance.Status.Phase == kubevirtv1.PhaseScheduled
	d.Status.FSFreezeStatus = ""
	d.Status.Conditions = condition.Remove(d.Status.Conditions, kubevirtv1.ConditionPaused, kubevirtv1.ConditionAgentConnected,
		kubevirtv1.ConditionStopDelayed, kubevirtv1.ConditionDiskNotTracked, kubevirtv1.ConditionPodScheduled, kubevirtv1.ConditionSynchronized,
		kubevirtv1.ConditionMigrationOutcomeUnknown, kubevirtv1.ConditionLiveMigratable)
	d.setObstacle(in, kubevirtv1.ConditionReady, &obstacle{Reason: o.reason, Message: o.message})
	d.RequeueAfter = 0
}

func (d *decision) notRunning(in input) {
	d.setObstacle(in, kubevirtv1.ConditionReady, &obstacle{Reason: ReasonGuestNotRunning, Message: fmt.Sprintf("The instance is in phase %s.", d.Status.Phase)})
}

// setObstacle sets the condition to False with o's reason and message, or removes it if o is nil.
func (d *decision) setObstacle(in input, t kubevirtv1.ConditionType, o *obstacle) {
	if o == nil {
		d.Status.Conditions = condition.Remove(d.Status.Conditions, t)
		return
	}
	d.Status.Conditions = condition.Set(d.Status.Conditions, kubevirtv1.Condition{
		Type: t, Status: corev1.ConditionFalse, Reason: o.Reason, Message: o.Message,
	}, in.Now)
}

func (d *decision) enterPhase(in input, p kubevirtv1.Phase) {
	d.Status.Phase = p
	d.Status.PhaseTransitionTimestamps = append(d.Status.PhaseTransitionTimestamps, kubevirtv1.PhaseTransitionTimestamp{
		Phase: p, PhaseTransitionTimestamp: metav1.NewTime(in.Now).Rfc3339Copy(),
	})
}
