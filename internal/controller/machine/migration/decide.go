package migration

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/instancepod"
	"github.com/varvebackup/varve/internal/layout"
)

// How long a migration waits.
const (
	// queueLimit is for its turn, from its creation.
	queueLimit = time.Hour
	// schedulingLimit is for the target pod to run, from phase Scheduling on.
	schedulingLimit = 5 * time.Minute
	// prepareLimit is for the target to listen, from the migration's start.
	prepareLimit = 3 * time.Minute
	// sourceGrace is what the source's handler has beyond the time that a migration may take, until the controller
	// asks for an abort.
	sourceGrace = 5 * time.Minute
	// silence is how long after an abort was asked for the status says whom the migration waits for.
	silence = time.Minute
)

// Finalizer keeps a migration until it has ended. It is KubeVirt's.
const Finalizer = "kubevirt.io/migrationJobFinalize"

// input is everything that the decision depends on.
type input struct {
	Now time.Time
	// Migration is not modified.
	Migration *kubevirtv1.VirtualMachineInstanceMigration
	// Instance is the one that the migration names, or nil if there is none.
	Instance *kubevirtv1.VirtualMachineInstance
	// Others are the cluster's other migrations that have not ended.
	Others []kubevirtv1.VirtualMachineInstanceMigration
	// Settings are the limits.
	Settings *kubevirtv1.MigrationConfiguration
	// NotMigratable says why the instance's guest cannot be moved. It is nil if it can.
	NotMigratable *problem
	// Target is the target pod, and Token the pod that brings the token to the source's node. Each is nil if the API
	// server has none.
	Target, Token *corev1.Pod
}

// problem is why a migration fails or waits.
type problem struct{ Reason, Message string }

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason, fmt.Sprintf(format, args...)}
}

// decision is what to do. Pods and the Secret are created first, then the label, the instance's status and the
// migration's status are written. The finalizer is removed last.
type decision struct {
	Status kubevirtv1.VirtualMachineInstanceMigrationStatus
	// Hold adds the finalizer; nothing else is done then.
	Hold bool
	// Provide creates the Secret and those of the two pods that are missing.
	Provide bool
	// TargetNode is the value of the label kubevirt.io/migrationTargetNodeName. If empty, the label stays as it is.
	TargetNode string
	// InstanceState replaces status.migrationState of the instance. It is nil if that stays.
	InstanceState *kubevirtv1.MigrationState
	// Release deletes the Secret and removes the finalizer.
	Release bool
	// Note is the event that tells of the new status, if there is one.
	Note *note
	// RequeueAfter is when the decision changes by the passage of time alone. 0: never.
	RequeueAfter time.Duration
}

// note is an event.
type note struct{ Type, Reason, Message string }

// decide says what a migration needs now.
func decide(in input) decision {
	m := in.Migration
	d := decision{Status: *m.Status.DeepCopy()}
	held := controllerutil.ContainsFinalizer(m, Finalizer)
	if m.Status.Phase.Final() {
		d.Release = held
		return d
	}
	if !held && m.DeletionTimestamp == nil {
		d.Hold = true
		return d
	}
	switch m.Status.Phase {
	case "", kubevirtv1.MigrationPending:
		d.decidePending(in)
	case kubevirtv1.MigrationScheduling:
		d.decideScheduling(in)
	case kubevirtv1.MigrationScheduled:
		d.decideScheduled(in)
	default:
		d.followHandlers(in)
	}
	return d
}

// decidePending lets the migration wait until nothing is in its way.
func (d *decision) decidePending(in input) {
	if d.Status.Phase == "" {
		d.enterPhase(in, kubevirtv1.MigrationPending)
	}
	if p := whyRefused(in); p != nil {
		d.markFailed(in, p)
		return
	}
	if d.waitForVolumes(in) || d.waitForTurn(in) {
		return
	}
	d.removeConditions(kubevirtv1.MigrationWaiting)
	d.enterPhase(in, kubevirtv1.MigrationScheduling)
	i := in.Instance
	d.Status.MigrationState = &kubevirtv1.MigrationState{
		MigrationUID: in.Migration.UID, Mode: kubevirtv1.MigrationPreCopy,
		SourceNode: i.Status.NodeName, SourcePod: instancepod.ActiveLauncher(i),
		TargetPod: layout.MigrationPod(i.Name, i.UID, in.Migration.UID),
	}
	d.RequeueAfter = schedulingLimit
}

// decideScheduling provides what the migration needs, and waits until the pods run.
func (d *decision) decideScheduling(in input) {
	if p := firstProblem(whyStopped(in), in.NotMigratable, whyTargetEnded(in)); p != nil {
		d.markFailed(in, p)
		return
	}
	d.Provide = in.Target == nil || in.Token == nil
	if in.Target != nil && in.Target.Spec.NodeName != "" {
		d.TargetNode = in.Target.Spec.NodeName
		d.Status.MigrationState.TargetNode = d.TargetNode
	}
	if podRuns(in.Target) && podRuns(in.Token) {
		d.removeConditions(kubevirtv1.MigrationWaiting, kubevirtv1.MigrationRejectedByResourceQuota)
		d.enterPhase(in, kubevirtv1.MigrationScheduled)
		return
	}
	why := whyPodsWait(in)
	left := in.enteredAt(kubevirtv1.MigrationScheduling).Add(schedulingLimit).Sub(in.Now)
	if left <= 0 {
		d.markFailed(in, problemf(ReasonTimeout, "The target pod does not run after %s. %s", schedulingLimit, why))
		return
	}
	d.RequeueAfter = left
	if !d.Provide {
		d.removeConditions(kubevirtv1.MigrationRejectedByResourceQuota)
		d.setCondition(in, kubevirtv1.MigrationWaiting, problemf(ReasonTargetPod,
			"%s The migration fails if the pods do not run within %s.", why, schedulingLimit))
	}
}

func firstProblem(problems ...*problem) *problem {
	for _, p := range problems {
		if p != nil {
			return p
		}
	}
	return nil
}

// decideScheduled hands the migration over to the handlers. A backup that has begun since the migration was Pending
// goes first.
func (d *decision) decideScheduled(in input) {
	if p := firstProblem(whyStopped(in), whyTargetEnded(in)); p != nil {
		d.markFailed(in, p)
		return
	}
	if in.Target == nil || in.Token == nil {
		d.markFailed(in, &problem{ReasonTargetPodEnded, "The target pod, or the pod that brings the token to the source's " +
			"node, was deleted. Create another migration."})
		return
	}
	state := in.Instance.Status.MigrationState
	switch {
	case state != nil && state.MigrationUID == in.Migration.UID:
		// It was written, and this status was not.
	case !state.Ended():
		d.markFailed(in, problemf(ReasonAnotherMigration, "The migration with UID %s still moves VirtualMachineInstance %s.",
			state.MigrationUID, in.Instance.Name))
		return
	case d.waitForVolumes(in):
		return
	default:
		started := metav1.NewTime(in.Now).Rfc3339Copy()
		next := d.Status.MigrationState.DeepCopy()
		next.StartTimestamp = &started
		d.InstanceState = next
		d.Status.MigrationState = next.DeepCopy()
	}
	d.enterPhase(in, kubevirtv1.MigrationPreparingTarget)
	d.RequeueAfter = prepareLimit
}

// followHandlers follows what the handlers write in the instance's status, and asks for an abort.
func (d *decision) followHandlers(in input) {
	var s *kubevirtv1.MigrationState
	if in.Instance != nil {
		s = in.Instance.Status.MigrationState
	}
	if s == nil || s.MigrationUID != in.Migration.UID {
		d.markFailed(in, problemf(ReasonInstanceReplaced, "VirtualMachineInstance %s no longer has this migration in its "+
			"status: it was deleted or started again.", in.Migration.Spec.VMIName))
		return
	}
	d.Status.MigrationState = s.DeepCopy()
	switch {
	case s.Moved():
		d.markSucceeded(in)
	case s.Ended():
		d.markFailed(in, &problem{ReasonFailed, s.FailureReason})
	case in.Instance.Status.Phase.Final():
		d.markFailed(in, problemf(ReasonInstanceNotRunning, "VirtualMachineInstance %s has ended.", in.Instance.Name))
	default:
		d.followRunning(in, s)
	}
}

// followRunning follows a migration that has not ended.
func (d *decision) followRunning(in input, s *kubevirtv1.MigrationState) {
	p, left := whyAborted(in, s)
	switch {
	case p != nil:
		d.requestAbort(in, s, p)
		return
	case s.TargetNodeAddress == "":
		d.setCondition(in, kubevirtv1.MigrationWaiting, problemf(ReasonTargetHandler,
			"The handler of node %s prepares target pod %s. The migration fails if that takes longer than %s.",
			s.TargetNode, s.TargetPod, prepareLimit))
	case d.Status.Phase == kubevirtv1.MigrationPreparingTarget:
		d.removeConditions(kubevirtv1.MigrationWaiting)
		d.enterPhase(in, kubevirtv1.MigrationTargetReady)
	case d.Status.Phase == kubevirtv1.MigrationTargetReady:
		d.enterPhase(in, kubevirtv1.MigrationRunning)
	}
	d.RequeueAfter = left
}

// requestAbort ends a migration whose target does not listen yet, and asks for the abort of another one.
func (d *decision) requestAbort(in input, s *kubevirtv1.MigrationState, p *problem) {
	d.setCondition(in, kubevirtv1.MigrationAbortRequested, p)
	next := s.DeepCopy()
	switch {
	case s.TargetNodeAddress == "":
		end := metav1.NewTime(in.Now).Rfc3339Copy()
		next.Failed, next.FailureReason, next.EndTimestamp = true, p.Message, &end
		d.InstanceState = next
	case !s.AbortRequested:
		next.AbortRequested = true
		d.InstanceState = next
		d.RequeueAfter = silence
	default:
		asked := findCondition(d.Status.Conditions, kubevirtv1.MigrationAbortRequested).LastTransitionTime
		if left := asked.Add(silence).Sub(in.Now); left > 0 {
			d.RequeueAfter = left
			return
		}
		d.setCondition(in, kubevirtv1.MigrationWaiting, problemf(ReasonSourceHandler,
			"The handler of node %s has not ended the migration yet: check its pod and the node. The guest runs where it is.",
			s.SourceNode))
	}
}

// markSucceeded ends the migration once the target pod is the instance's launcher pod. Package virtualmachineinstance
// sees to that.
func (d *decision) markSucceeded(in input) {
	s := d.Status.MigrationState
	if in.Instance.Status.NodeName != s.TargetNode && !in.Instance.Status.Phase.Final() {
		return
	}
	d.removeConditions(kubevirtv1.MigrationWaiting)
	d.enterPhase(in, kubevirtv1.MigrationSucceeded)
	d.Note = &note{
		corev1.EventTypeNormal, "SuccessfulMigration",
		fmt.Sprintf("VirtualMachineInstance %s moved from node %s to node %s.", in.Instance.Name, s.SourceNode, s.TargetNode),
	}
}

// markFailed ends the migration, with the guest where it is.
func (d *decision) markFailed(in input, p *problem) {
	d.removeConditions(kubevirtv1.MigrationWaiting)
	d.setCondition(in, kubevirtv1.MigrationEndedInVain, p)
	if d.Status.MigrationState == nil {
		d.Status.MigrationState = &kubevirtv1.MigrationState{MigrationUID: in.Migration.UID}
	}
	s := d.Status.MigrationState
	s.Failed, s.FailureReason = true, p.Message
	if s.EndTimestamp == nil {
		end := metav1.NewTime(in.Now).Rfc3339Copy()
		s.EndTimestamp = &end
	}
	d.enterPhase(in, kubevirtv1.MigrationFailed)
	d.Provide, d.RequeueAfter = false, 0
	d.Note = &note{corev1.EventTypeWarning, "FailedMigration", p.Message}
}

func (d *decision) enterPhase(in input, p kubevirtv1.MigrationPhase) {
	d.Status.Phase = p
	d.Status.PhaseTransitionTimestamps = append(d.Status.PhaseTransitionTimestamps,
		kubevirtv1.MigrationPhaseTransitionTimestamp{
			Phase: p, PhaseTransitionTimestamp: metav1.NewTime(in.Now).Rfc3339Copy(),
		})
}

// enteredAt returns when the migration entered a phase, or its creation.
func (in input) enteredAt(p kubevirtv1.MigrationPhase) time.Time {
	for _, t := range in.Migration.Status.PhaseTransitionTimestamps {
		if t.Phase == p {
			return t.PhaseTransitionTimestamp.Time
		}
	}
	return in.Migration.CreationTimestamp.Time
}
