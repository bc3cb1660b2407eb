package backuppolicy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	"github.com/varvebackup/varve/internal/reconcile"
)

// messageBytes is the longest message of a machine or of a condition: 20 of them fit into an object.
const messageBytes = 1024

// newStatus returns the status of a policy whose decision was carried out.
func newStatus(policy *varvev1.BackupPolicy, d *decision, now time.Time) varvev1.BackupPolicyStatus {
	failed := slices.Clone(d.failed)
	slices.SortFunc(failed, func(a, b varvev1.FailedMachine) int { return strings.Compare(a.Name, b.Name) })
	ready := metav1.Condition{
		Type: varvev1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: policy.Generation,
		LastTransitionTime: metav1.NewTime(now).Rfc3339Copy(),
	}
	switch {
	case d.invalid != nil:
		ready.Reason = d.reason
		ready.Message = reconcile.CutText(d.invalid.Error(), messageBytes) + ": the schedules stay as they are"
	case len(failed) > 0:
		ready.Reason = failed[0].Reason
		ready.Message = fmt.Sprintf("machines without a schedule, or with an old one: %d. status.failed says why",
			len(failed))
	default:
		ready.Status, ready.Reason = metav1.ConditionTrue, varvev1.ReasonScheduled
		ready.Message = fmt.Sprintf("machines with a schedule: %d", d.scheduled)
	}
	status := *policy.Status.DeepCopy()
	status.ObservedGeneration, status.Machines = policy.Generation, int32(d.scheduled) //nolint:gosec // not 2^31 machines
	status.Failed = failed[:min(len(failed), varvev1.MaxFailed)]
	meta.SetStatusCondition(&status.Conditions, ready)
	return status
}
