package virtualmachine

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// The first failed start is followed by firstDelay. Each further one is followed by twice the previous delay, up to
// longestDelay.
const (
	firstDelay   = 10 * time.Second
	longestDelay = 5 * time.Minute
)

// startDelay returns how long the next start waits after this many failed starts in a row.
func startDelay(failures int) time.Duration {
	d := firstDelay
	for range failures - 1 {
		if d *= 2; d >= longestDelay {
			return longestDelay
		}
	}
	return d
}

// countStart counts, once, an instance that failed before its guest ran. It forgets earlier failures when a guest
// runs. As in KubeVirt, only the strategies that start machines by themselves count: a person who starts a machine
// is not held back.
func (d *decision) countStart(in input) {
	s := runStrategyOf(in.VM)
	if s != kubevirtv1.RunStrategyAlways && s != kubevirtv1.RunStrategyRerunOnFailure {
		d.Status.StartFailure = nil
		return
	}
	if in.Instance == nil {
		return
	}
	if hasRun(in.Instance) {
		d.Status.StartFailure = nil
		return
	}
	if !failedToStart(in.Instance) {
		return
	}
	f := kubevirtv1.StartFailure{}
	if d.Status.StartFailure != nil {
		f = *d.Status.StartFailure
	}
	if f.LastFailedVMIUID == in.Instance.UID {
		return
	}
	f.ConsecutiveFailCount++
	f.LastFailedVMIUID = in.Instance.UID
	retry := metav1.NewTime(in.Now.Add(startDelay(f.ConsecutiveFailCount))).Rfc3339Copy()
	f.RetryAfterTimestamp = &retry
	d.Status.StartFailure = &f
	d.CountedFailure = true
}

// failedToStart reports whether the instance failed before its guest ran. An instance that somebody deleted before its guest ran did
// not fail to start.
func failedToStart(instance *kubevirtv1.VirtualMachineInstance) bool {
	return instance != nil && instance.Status.Phase == kubevirtv1.PhaseFailed && !hasRun(instance) && instance.DeletionTimestamp == nil
}

// hasRun reports whether the instance's guest runs or has run.
func hasRun(instance *kubevirtv1.VirtualMachineInstance) bool {
	return instance.Status.Phase == kubevirtv1.PhaseRunning ||
		slices.ContainsFunc(instance.Status.PhaseTransitionTimestamps, func(t kubevirtv1.PhaseTransitionTimestamp) bool {
			return t.Phase == kubevirtv1.PhaseRunning
		})
}
