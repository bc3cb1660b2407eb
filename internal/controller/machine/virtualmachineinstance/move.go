package virtualmachineinstance

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/layout"
)

// outcomeGrace is how long the handlers have to say where the guest is after the source pod of a migration has ended.
const outcomeGrace = 60 * time.Second

// endMigration ends a migration that nobody else ends: that of a VirtualMachineInstanceMigration that no longer
// exists, and one whose target pod has ended. Once the target listens, the source may be switching to it, so only the
// source's handler knows how an abort ends.
func (d *decision) endMigration(in input) {
	s := d.Status.MigrationState
	if s.Ended() {
		return
	}
	targetOver := in.Target == nil
	if in.Target != nil {
		var wait time.Duration
		targetOver, wait = podOver(in.Target, in.Now)
		d.RequeueAfter = shorterWait(d.RequeueAfter, wait)
	}
	switch abandoned := !in.Migrations[s.MigrationUID]; {
	case targetOver:
		d.failMigration(in, fmt.Sprintf("The target pod %s on node %s has ended. The guest stays on node %s; migrate it "+
			"again.", s.TargetPod, s.TargetNode, s.SourceNode))
	case abandoned && s.TargetNodeAddress == "":
		d.failMigration(in, "The VirtualMachineInstanceMigration no longer exists.")
	case abandoned:
		s.AbortRequested = true
	}
}

func (d *decision) failMigration(in input, reason string) {
	s := d.Status.MigrationState
	s.Failed, s.FailureReason, s.EndTimestamp = true, reason, endTime(in.Now)
}

func endTime(now time.Time) *metav1.Time {
	t := metav1.NewTime(now).Rfc3339Copy()
	return &t
}

// awaitMigration reports whether the end of the source pod is not the end of the instance, or not yet, because a
// migration moves the guest. If the guest runs in the target pod, the migration has completed.
func (d *decision) awaitMigration(in input) bool {
	s := d.Status.MigrationState
	if s.Ended() {
		return false
	}
	if s.TargetNodeDomainDetected {
		s.Completed, s.EndTimestamp = true, endTime(in.Now)
		return true
	}
	d.Status.Conditions = condition.Set(d.Status.Conditions, kubevirtv1.Condition{
		Type: kubevirtv1.ConditionMigrationOutcomeUnknown, Status: corev1.ConditionTrue, Reason: ReasonSourcePodEnded,
		Message: fmt.Sprintf("Launcher pod %s has ended during the migration to node %s. If no handler says within %s "+
			"that the guest runs there, the instance has failed.",
			s.SourcePod, s.TargetNode, outcomeGrace),
	}, in.Now)
	since := condition.Find(d.Status.Conditions, kubevirtv1.ConditionMigrationOutcomeUnknown).LastTransitionTime
	if left := since.Add(outcomeGrace).Sub(in.Now); left > 0 {
		d.RequeueAfter = shorterWait(d.RequeueAfter, left)
		return true
	}
	d.failMigration(in, fmt.Sprintf("Launcher pod %s has ended, and the handler of node %s did not report the guest.",
		s.SourcePod, s.TargetNode))
	return false
}

// followMove makes the target pod of a completed migration the instance's launcher pod, and its node the instance's
// node. The handler there validates the trackers' checkpoints again before changed block tracking is Enabled.
func (d *decision) followMove(in input) {
	s := d.Status.MigrationState
	if s.Ended() {
		d.Status.Conditions = condition.Remove(d.Status.Conditions, kubevirtv1.ConditionMigrationOutcomeUnknown)
	}
	if !s.Moved() || in.Pod == nil || in.Pod.Name != s.TargetPod || d.Status.Phase.Final() {
		return
	}
	node := in.Pod.Spec.NodeName
	if d.Status.NodeName == node && len(d.Status.ActivePods) == 1 && d.Status.ActivePods[in.Pod.UID] == node {
		return
	}
	d.Status.NodeName, d.Status.ActivePods = node, map[types.UID]string{in.Pod.UID: node}
	if t := d.Status.ChangedBlockTracking; t != nil && t.State == kubevirtv1.ChangedBlockTrackingEnabled {
		t.State = kubevirtv1.ChangedBlockTrackingInitializing
	}
}

// removeOthers deletes the pods that no migration needs, and releases those that have ended.
func (d *decision) removeOthers(in input) {
	for _, pod := range in.Others {
		over, wait := podOver(pod, in.Now)
		if over {
			d.ReleaseOthers = append(d.ReleaseOthers, pod)
		}
		d.RequeueAfter = shorterWait(d.RequeueAfter, wait)
		if pod.DeletionTimestamp == nil && !d.neededByMigration(in, pod) {
			d.DeleteOthers = append(d.DeleteOthers, pod)
		}
	}
}

// isLauncherPod tells a launcher pod from one that brings a token to a node, and that an instance need not wait for.
func isLauncherPod(pod *corev1.Pod) bool { return pod.Labels[layout.LabelApp] == AppLauncher }

// neededByMigration reports whether the pod belongs to a migration that has not ended.
func (d *decision) neededByMigration(in input, pod *corev1.Pod) bool {
	if d.Status.Phase.Final() {
		return false
	}
	job := types.UID(pod.Labels[layout.LabelMigrationJob])
	if s := d.Status.MigrationState; !s.Ended() && (pod.Name == s.TargetPod || pod.Name == s.SourcePod ||
		job == s.MigrationUID) {
		return true
	}
	return in.Migrations[job]
}

// reasonOldHandler is the reason of the condition LiveMigratable that handlers of older versions write. While one
// runs, the controller leaves the condition to it, or both would write it in turn without an end. A handler of this
// version removes it.
const reasonOldHandler = "LiveMigrationNotSupported"

// setMigratable says in a condition whether the guest can be moved.
func (d *decision) setMigratable(in input) {
	old := condition.Find(d.Status.Conditions, kubevirtv1.ConditionLiveMigratable)
	if !handedOver(d.Status.Phase) || old != nil && old.Reason == reasonOldHandler {
		return
	}
	if in.NotMigratable != nil {
		d.setObstacle(in, kubevirtv1.ConditionLiveMigratable, in.NotMigratable)
		return
	}
	d.Status.Conditions = condition.Set(d.Status.Conditions, kubevirtv1.Condition{
		Type:   kubevirtv1.ConditionLiveMigratable,
		Status: corev1.ConditionTrue,
	}, in.Now)
}
