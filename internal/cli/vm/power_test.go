package vm

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// A start that waits says why the last start has failed, while that is known, and otherwise why the machine is not
// ready.
func TestNewStartReport_saysWhyTheStartFailed(t *testing.T) {
	t.Parallel()
	notReady := kubevirtv1.Condition{
		Type: kubevirtv1.ConditionReady, Status: corev1.ConditionFalse,
		Message: "the guest does not run",
	}
	failed := kubevirtv1.Condition{
		Type: kubevirtv1.ConditionFailure, Status: corev1.ConditionTrue,
		Reason: "StartFailed", Message: "the disk has no image",
	}
	over := failed
	over.Status = corev1.ConditionFalse
	for name, c := range map[string]struct {
		conditions []kubevirtv1.Condition
		want       string
	}{
		"nothing known":     {nil, ""},
		"not ready":         {[]kubevirtv1.Condition{notReady}, "the guest does not run"},
		"crash loop":        {[]kubevirtv1.Condition{notReady, failed}, "StartFailed: the disk has no image"},
		"a failure is over": {[]kubevirtv1.Condition{over, notReady}, "the guest does not run"},
	} {
		vm := &kubevirtv1.VirtualMachine{}
		vm.Name, vm.Status.PrintableStatus, vm.Status.Conditions = "web", "CrashLoopBackOff", c.conditions
		if r := newStartReport(vm); r.Message != c.want || r.Name != "web" || r.Phase != "CrashLoopBackOff" {
			t.Errorf("%s: %+v, want %q", name, r, c.want)
		}
	}
}
