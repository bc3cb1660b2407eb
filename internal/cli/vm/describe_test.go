package vm

import (
	"testing"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// A machine of KubeVirt's that runs and is not tracked is backed up in another way.
func TestDescribeUntracked(t *testing.T) {
	t.Parallel()
	running := func(state kubevirtv1.ChangedBlockTrackingState) *kubevirtv1.VirtualMachineInstance {
		vmi := &kubevirtv1.VirtualMachineInstance{}
		vmi.Status.Phase = kubevirtv1.PhaseRunning
		if state != "" {
			vmi.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: state}
		}
		return vmi
	}
	for name, c := range map[string]struct {
		vmi      *kubevirtv1.VirtualMachineInstance
		kubevirt bool
		says     bool
	}{
		"not selected":        {running(""), true, true},
		"disabled":            {running(kubevirtv1.ChangedBlockTrackingDisabled), true, true},
		"tracked":             {running(kubevirtv1.ChangedBlockTrackingEnabled), true, false},
		"about to be tracked": {running(kubevirtv1.ChangedBlockTrackingInitializing), true, false},
		"stopped":             {nil, true, false},
		"under Varve's own":   {running(""), false, false},
		"it does not run yet": {&kubevirtv1.VirtualMachineInstance{}, true, false},
	} {
		if got := describeUntracked(c.vmi, c.kubevirt); (got != "") != c.says {
			t.Errorf("%s: %q", name, got)
		}
	}
}
