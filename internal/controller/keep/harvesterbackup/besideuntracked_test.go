package harvesterbackup

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// untrackedInput is a machine of KubeVirt's that runs, with these states of changed block tracking.
func untrackedInput(t *testing.T, machine, instance kubevirtv1.ChangedBlockTrackingState) *input {
	t.Helper()
	in := besideInput(t)
	in.instance = &kubevirtv1.VirtualMachineInstance{
		Spec:   in.stopped.Spec.Template.Spec,
		Status: kubevirtv1.VirtualMachineInstanceStatus{Phase: kubevirtv1.PhaseRunning},
	}
	in.stopped = nil
	if instance != "" {
		in.instance.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: instance}
	}
	if machine != "" {
		err := unstructured.SetNestedField(in.machine.Object, string(machine), "status", "changedBlockTracking", "state")
		if err != nil {
			t.Fatal(err)
		}
	}
	return in
}

// A machine that runs and is not tracked is read from a snapshot, and its status says why, and how it gets tracked.
func TestPlan_untracked(t *testing.T) {
	t.Parallel()
	const label = "give it a label that spec.configuration.changedBlockTrackingLabelSelectors of the KubeVirt object " +
		"selects by"
	type state = kubevirtv1.ChangedBlockTrackingState
	for name, c := range map[string]struct {
		machine, instance state
		why, how          string
	}{
		"not selected":    {"", "", "it is not selected, or KubeVirt is older than 1.8", label},
		"disabled":        {kubevirtv1.ChangedBlockTrackingDisabled, "", "Disabled", label},
		"pending restart": {kubevirtv1.ChangedBlockTrackingPendingRestart, "", "PendingRestart", "restart it"},
		"gate": {
			kubevirtv1.ChangedBlockTrackingFGDisabled, "", "IncrementalBackupFeatureGateDisabled",
			"turn KubeVirt's feature gate IncrementalBackup on",
		},
		"instance disabled": {"", kubevirtv1.ChangedBlockTrackingDisabled, "Disabled", label},
		"machine alone":     {kubevirtv1.ChangedBlockTrackingInitializing, "", "Initializing", "restart it"},
	} {
		p := makePlan(untrackedInput(t, c.machine, c.instance))
		if p.status == nil || p.status.Untracked == nil || p.status.Stopped != nil || p.status.ScratchBytes != 0 {
			t.Errorf("%s: %+v", name, p)
			continue
		}
		says := p.status.Untracked.Message
		if !strings.Contains(says, "machine web are not tracked ("+c.why+")") ||
			!strings.Contains(says, "to have incremental backups, "+c.how) {
			t.Errorf("%s: %q", name, says)
		}
	}
	tracked := makePlan(untrackedInput(t, "", kubevirtv1.ChangedBlockTrackingEnabled))
	if tracked.status == nil || tracked.status.Untracked != nil || tracked.status.ScratchBytes == 0 {
		t.Errorf("tracked: %+v", tracked)
	}
	soon := makePlan(untrackedInput(t, "", kubevirtv1.ChangedBlockTrackingInitializing))
	if !strings.Contains(soon.waiting, "to be tracked") {
		t.Errorf("about to be tracked: %+v", soon)
	}
	own := untrackedInput(t, "", "")
	own.beside = false
	if p := makePlan(own); !strings.Contains(p.refused, "give it a label") {
		t.Errorf("with Varve's own runtime: %+v", p)
	}
}

// KubeVirt freezes, and one backup of a machine runs at a time.
func TestPlan_untrackedWaitsAndRefuses(t *testing.T) {
	t.Parallel()
	in := untrackedInput(t, "", "")
	in.earlier = "sunday"
	if p := makePlan(in); !strings.Contains(p.waiting, "VirtualMachineBackup sunday of the machine to end") {
		t.Errorf("after an earlier one: %+v", p)
	}
	in = untrackedInput(t, "", "")
	in.backup.Annotations = map[string]string{harvesterv1.AnnotationFreeze: "false"}
	if p := makePlan(in); !strings.Contains(p.refused, "KubeVirt freezes the guest of each snapshot") {
		t.Errorf("without a freeze: %+v", p)
	}
}
