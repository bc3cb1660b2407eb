package virtualmachine

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/templatediff"
)

// Reasons of a machine's own conditions. Failure is also True, with the reason that the instance had, after an instance that failed
// before its guest ran.
const (
	// ReasonNoInstance: Ready is False because no instance exists.
	ReasonNoInstance = "VMINotExists"
	// ReasonGuestNotRunning: Ready is False because the instance's guest does not run yet, or no longer runs.
	ReasonGuestNotRunning = "GuestNotRunning"
	// ReasonFailedCreate: Failure is True because the API server refused the instance; the message quotes it.
	ReasonFailedCreate = "FailedCreate"
	// ReasonInstanceExists: Failure is True because an instance of this name belongs to somebody else; delete it.
	ReasonInstanceExists = "InstanceOfAnotherOwner"
	// ReasonTemplateChanged: RestartRequired is True because the template differs from the instance that runs; the message names the
	// fields.
	ReasonTemplateChanged = "TemplateChanged"
)

// mirrorInstance fills in the part of status that only mirrors what the controller sees.
func (d *decision) mirrorInstance(in input) {
	d.Status.Created = in.Instance != nil
	d.Status.Ready = in.Instance != nil && condition.True(in.Instance.Status.Conditions, kubevirtv1.ConditionReady)
	d.Status.PrintableStatus = d.printableStatus(in)
	d.Status.Conditions = d.machineConditions(in)
}

func (d *decision) machineConditions(in input) []kubevirtv1.Condition {
	var next []kubevirtv1.Condition
	if in.Instance != nil {
		for _, c := range in.Instance.Status.Conditions {
			next = append(next, *c.DeepCopy())
		}
	}
	own := func(c kubevirtv1.Condition) {
		if old := condition.Find(in.VM.Status.Conditions, c.Type); old != nil {
			next = append(next, *old.DeepCopy())
		}
		next = condition.Set(next, c, in.Now)
	}
	if condition.Find(next, kubevirtv1.ConditionReady) == nil {
		reason, message := ReasonNoInstance, "The machine has no instance."
		if in.Instance != nil {
			reason, message = ReasonGuestNotRunning, fmt.Sprintf("The instance is in phase %s.", phaseOrPending(in.Instance))
		}
		own(kubevirtv1.Condition{Type: kubevirtv1.ConditionReady, Status: corev1.ConditionFalse, Reason: reason, Message: message})
	}
	if changed := changedFields(in); len(changed) > 0 {
		own(kubevirtv1.Condition{Type: kubevirtv1.ConditionRestartRequired, Status: corev1.ConditionTrue, Reason: ReasonTemplateChanged, Message: restartMessage(changed)})
	}
	switch {
	case in.Foreign:
		own(kubevirtv1.Condition{
			Type: kubevirtv1.ConditionFailure, Status: corev1.ConditionTrue, Reason: ReasonInstanceExists,
			Message: fmt.Sprintf("VirtualMachineInstance %s exists and does not belong to this machine; delete it, or give the machine another name.", in.VM.Name),
		})
	case in.CreateError != "":
		own(kubevirtv1.Condition{Type: kubevirtv1.ConditionFailure, Status: corev1.ConditionTrue, Reason: ReasonFailedCreate, Message: in.CreateError})
	case d.FailedStart != nil:
		own(*d.FailedStart)
	default:
		if old := condition.Find(in.VM.Status.Conditions, kubevirtv1.ConditionFailure); old != nil && d.failureStays(in, old.Reason) {
			next = append(next, *old.DeepCopy())
		}
	}
	return next
}

// changedFields returns the fields in which the template differs from the instance. An instance that has ended is replaced anyway.
func changedFields(in input) []string {
	if in.VM.Spec.Template == nil || in.Instance == nil || in.Instance.Status.Phase.Final() {
		return nil
	}
	return templatediff.Fields(&in.VM.Spec.Template.Spec, &in.Instance.Spec)
}

// maxFields bounds how many fields a message names.
const maxFields = 10

func restartMessage(fields []string) string {
	named := strings.Join(fields[:min(len(fields), maxFields)], ", ")
	if more := len(fields) - maxFields; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return "The template differs from the running instance in " + named + ": restart the machine to apply it."
}

// whyStartFailed returns the condition that keeps the reason of an instance that failed before its guest ran. The instance itself is
// deleted at once.
func whyStartFailed(instance *kubevirtv1.VirtualMachineInstance) kubevirtv1.Condition {
	reason, message := instance.Status.Reason, "The instance failed before its guest ran."
	if ready := condition.Find(instance.Status.Conditions, kubevirtv1.ConditionReady); ready != nil && ready.Message != "" {
		reason, message = cmp.Or(reason, ready.Reason), "The instance failed before its guest ran: "+ready.Message
	}
	return kubevirtv1.Condition{
		Type: kubevirtv1.ConditionFailure, Status: corev1.ConditionTrue, Reason: cmp.Or(reason, virtualmachineinstance.ReasonStartFailed), Message: message,
	}
}

// failureStays reports whether an earlier failure still holds: a refusal until an attempt succeeds, and a failed start until a guest
// runs.
func (d *decision) failureStays(in input, reason string) bool {
	switch reason {
	case ReasonInstanceExists:
		return false
	case ReasonFailedCreate:
		return d.Create
	default:
		return in.Instance == nil || !hasRun(in.Instance)
	}
}

func phaseOrPending(instance *kubevirtv1.VirtualMachineInstance) kubevirtv1.Phase {
	if instance.Status.Phase == "" {
		return kubevirtv1.PhasePending
	}
	return instance.Status.Phase
}

// printableStatus returns the machine's state in one word, in KubeVirt's order of precedence.
func (d *decision) printableStatus(in input) kubevirtv1.PrintableStatus {
	switch {
	case in.VM.DeletionTimestamp != nil:
		return kubevirtv1.VirtualMachineTerminating
	case in.Instance == nil || in.Instance.Status.Phase.Final():
		return d.printableWithoutGuest(in)
	case in.Instance.DeletionTimestamp != nil || d.Delete:
		return kubevirtv1.VirtualMachineStopping
	case condition.True(in.Instance.Status.Conditions, kubevirtv1.ConditionPaused):
		return kubevirtv1.VirtualMachinePaused
	case in.Instance.Status.Phase == kubevirtv1.PhaseRunning:
		return kubevirtv1.VirtualMachineRunning
	default:
		return whyNotRunning(in.Instance)
	}
}

// printableWithoutGuest distinguishes a machine that is down from one that is about to start, or start again.
func (d *decision) printableWithoutGuest(in input) kubevirtv1.PrintableStatus {
	switch {
	case d.Status.StartFailure != nil && runStrategyOf(in.VM) != kubevirtv1.RunStrategyHalted && !d.Create:
		return kubevirtv1.VirtualMachineCrashLoopBackOff
	case d.Create:
		return kubevirtv1.VirtualMachineStarting
	default:
		return kubevirtv1.VirtualMachineStopped
	}
}

// whyNotRunning returns what keeps an instance from running, or Starting if nothing does.
func whyNotRunning(instance *kubevirtv1.VirtualMachineInstance) kubevirtv1.PrintableStatus {
	byReason := map[string]kubevirtv1.PrintableStatus{
		virtualmachineinstance.ReasonClaimNotFound:    kubevirtv1.VirtualMachinePvcNotFound,
		virtualmachineinstance.ReasonImagePull:        kubevirtv1.VirtualMachineErrImagePull,
		virtualmachineinstance.ReasonUnschedulable:    kubevirtv1.VirtualMachineUnschedulable,
		virtualmachineinstance.ReasonWaitingForVolume: kubevirtv1.VirtualMachineWaitingForVolumeBinding,
	}
	for _, t := range []kubevirtv1.ConditionType{kubevirtv1.ConditionSynchronized, kubevirtv1.ConditionPodScheduled} {
		c := condition.Find(instance.Status.Conditions, t)
		if c == nil || c.Status != corev1.ConditionFalse {
			continue
		}
		if s, ok := byReason[c.Reason]; ok {
			return s
		}
	}
	return kubevirtv1.VirtualMachineStarting
}
