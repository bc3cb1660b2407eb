package changedblocktracking

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/internal/stateclaim"
)

// claimInput is everything that the decision about an instance's state claims depends on.
type claimInput struct {
	Now      time.Time
	VM       *kubevirtv1.VirtualMachine
	Instance *kubevirtv1.VirtualMachineInstance
	Claims   stateclaim.Claims
	// Bytes is how large the claim must be.
	Bytes int64
	// Expandable says that the storage class of the current claim allows expansion.
	Expandable bool
	// SuccessorBinds says that the successor has a volume, or gets one when a pod mounts it.
	SuccessorBinds bool
}

// claimAction is what has to happen to the state claims that an instance needs.
type claimAction string

const (
	claimKeep   claimAction = "keep"
	claimCreate claimAction = "create"
	// claimExpand asks for more room in the current claim.
	claimExpand claimAction = "expand"
	// claimSucceed creates a larger claim, which the overlays move to at the next start.
	claimSucceed claimAction = "succeed"
	// claimRetire deletes the claim that the overlays have moved away from.
	claimRetire claimAction = "retire"
	// claimReplace deletes a claim that is too small and cannot be saved. The overlays are lost then, and the next backup
	// is full. A larger one exists, or is created once the old one is gone.
	claimReplace claimAction = "replace"
	// claimRemake deletes a successor that has become too small itself before anything has moved to it.
	claimRemake claimAction = "remake"
	// claimWait means that a claim of a name that is needed is being deleted, or that the step takes its time.
	claimWait claimAction = "wait"
	// claimForeign means that a claim of this name belongs to somebody else.
	claimForeign claimAction = "foreign"
)

// claimDecision is what to do about the state claims.
type claimDecision struct {
	Action claimAction
	// Growth is what the instance's annotation must say before the action.
	Growth stateclaim.Growth
	// RequeueAfter is when the decision changes by the passage of time alone. 0: never.
	RequeueAfter time.Duration
}

// decideClaim says what an instance's state claims need. A claim changes only before the launcher pod exists, except that
// the old one of two is deleted when the guest runs.
//
// A claim that is too small is expanded where its storage class allows that, otherwise the overlays move to a larger one.
// Either has its time. When both have failed, the claim is replaced: the machine's start comes before its next incremental
// backup.
func decideClaim(in claimInput) claimDecision {
	growth := stateclaim.GrowthOf(in.Instance.Annotations)
	phase := in.Instance.Status.Phase
	current := in.Claims.Current
	switch {
	case current == nil && len(in.Claims.Going) > 0:
		return claimDecision{Action: claimWait, Growth: growth}
	case current == nil:
		return claimDecision{Action: claimCreate, Growth: growth}
	case !metav1.IsControlledBy(current, in.VM):
		return claimDecision{Action: claimForeign, Growth: growth}
	case phase != "" && phase != kubevirtv1.PhasePending:
		return claimDecision{Action: retireOrKeep(in), Growth: growth}
	case in.Claims.Successor != nil:
		return decideSuccessor(in, growth)
	case stateclaim.HasRoom(current, in.Bytes):
		return claimDecision{Action: claimKeep}
	case current.Status.Phase != corev1.ClaimBound:
		// It never had a volume, so no overlay is lost, and it cannot be expanded.
		return claimDecision{Action: claimReplace}
	}
	return makeRoom(in, growth)
}

// retireOrKeep lets the old claim go once the guest of this very instance runs with the new one. By then the launcher has
// moved what could be moved.
func retireOrKeep(in claimInput) claimAction {
	successor := in.Claims.Successor
	if successor == nil || in.Instance.Status.Phase != kubevirtv1.PhaseRunning {
		return claimKeep
	}
	if epoch, err := runepoch.Of(successor); err != nil || epoch.Run != runepoch.InstanceRun(in.Instance.UID) {
		return claimKeep // its launcher pod was made before there was a successor
	}
	return claimRetire
}

func decideSuccessor(in claimInput, growth stateclaim.Growth) claimDecision {
	if growth.Step != stateclaim.StepMove {
		growth = stateclaim.Begin(stateclaim.StepMove, in.Now, "")
	}
	successor := in.Claims.Successor
	if !stateclaim.HasRoom(successor, in.Bytes) {
		if epoch, err := runepoch.Of(successor); err == nil && epoch.Run == "" {
			return claimDecision{Action: claimRemake, Growth: growth}
		}
		// A start has failed halfway, and the disks have grown since. What has moved is kept; it gets its room next.
		return claimDecision{Action: claimReplace}
	}
	if in.SuccessorBinds {
		return claimDecision{Action: claimKeep, Growth: growth}
	}
	if left := growth.Deadline().Sub(in.Now); left > 0 {
		return claimDecision{Action: claimWait, Growth: growth, RequeueAfter: left}
	}
	return claimDecision{Action: claimReplace, Growth: growth}
}

// makeRoom takes the next step with a claim that is too small.
func makeRoom(in claimInput, growth stateclaim.Growth) claimDecision {
	current := in.Claims.Current
	if growth.Step == stateclaim.NoStep {
		growth = stateclaim.Begin(stateclaim.StepExpand, in.Now, "")
	}
	if growth.Step == stateclaim.StepExpand {
		if why := whyNotExpand(in, growth); why != "" {
			growth = stateclaim.Begin(stateclaim.StepMove, in.Now, why)
		}
	}
	left := growth.Deadline().Sub(in.Now)
	if growth.Step == stateclaim.StepExpand {
		if current.Spec.Resources.Requests.Storage().Value() < in.Bytes {
			return claimDecision{Action: claimExpand, Growth: growth, RequeueAfter: left}
		}
		return claimDecision{Action: claimWait, Growth: growth, RequeueAfter: left}
	}
	if left <= 0 {
		return claimDecision{Action: claimReplace, Growth: growth}
	}
	if len(in.Claims.Going) > 0 {
		return claimDecision{Action: claimWait, Growth: growth, RequeueAfter: left}
	}
	return claimDecision{Action: claimSucceed, Growth: growth, RequeueAfter: min(left, refusedRetry)}
}

// refusedRetry is how soon a successor that was refused is asked for again.
const refusedRetry = 10 * time.Second

// whyNotExpand says why the current claim is not expanded, or not any longer. It returns "" if it is.
func whyNotExpand(in claimInput, growth stateclaim.Growth) string {
	current := in.Claims.Current
	said := stateclaim.ExpansionProblem(current)
	switch {
	case growth.Refusal != "":
		return growth.Refusal
	case !in.Expandable:
		return "the claim's storage class does not allow expansion"
	case stateclaim.ExpansionFailed(current) && said != "":
		return said
	case stateclaim.ExpansionFailed(current):
		return "the storage cannot expand the volume"
	case !in.Now.Before(growth.Deadline()) && said != "":
		return said
	case !in.Now.Before(growth.Deadline()):
		return "the storage has not expanded the volume in time"
	}
	return ""
}
