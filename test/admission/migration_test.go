//go:build controlplane

package admission

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

func newMigration(ns string) *kubevirtv1.VirtualMachineInstanceMigration {
	return &kubevirtv1.VirtualMachineInstanceMigration{
		ObjectMeta: gen.Meta(ns, "m"),
		Spec:       kubevirtv1.VirtualMachineInstanceMigrationSpec{VMIName: "vm"},
	}
}

// The handlers of both nodes write in the state of one migration, each what it alone knows. No other handler does.
func TestHandler_reportsItsSideOfAMigration(t *testing.T) {
	t.Parallel()
	const source, target, other = "node-a", "node-b", "node-c"
	const state = "only the controller begins and aborts a migration"
	now := ptr.To(metav1.Now().Rfc3339Copy())
	for name, c := range map[string]struct {
		edit func(*kubevirtv1.VirtualMachineInstanceStatus)
		// source and target are the refusals of the handlers. Empty: the handler may write that.
		source, target string
	}{
		"the target listens": {func(s *kubevirtv1.VirtualMachineInstanceStatus) {
			s.MigrationState.TargetNodeAddress, s.MigrationState.TargetNodeDomainReadyTimestamp = "10.0.0.2:49152", now
		}, state, ""},
		"the target has the guest": {func(s *kubevirtv1.VirtualMachineInstanceStatus) { s.MigrationState.TargetNodeDomainDetected = true }, state, ""},
		"it has completed": {func(s *kubevirtv1.VirtualMachineInstanceStatus) {
			s.MigrationState.Completed, s.MigrationState.EndTimestamp = true, now
		}, "", state},
		"it has failed": {func(s *kubevirtv1.VirtualMachineInstanceStatus) {
			s.MigrationState.Failed, s.MigrationState.FailureReason, s.MigrationState.EndTimestamp = true, "why", now
		}, "", state},
		"it is aborted": {
			func(s *kubevirtv1.VirtualMachineInstanceStatus) { s.MigrationState.AbortRequested = true },
			state, state,
		},
		"it never was": {func(s *kubevirtv1.VirtualMachineInstanceStatus) { s.MigrationState = nil }, state, state},
		"another target pod": {
			func(s *kubevirtv1.VirtualMachineInstanceStatus) { s.MigrationState.TargetPod = "victims" },
			state, state,
		},
		"another target node": {
			func(s *kubevirtv1.VirtualMachineInstanceStatus) { s.MigrationState.TargetNode = other },
			state, state,
		},
		"another migration": {func(s *kubevirtv1.VirtualMachineInstanceStatus) { s.MigrationState.MigrationUID = "victims" }, state, state},
		"the guest pauses": {func(s *kubevirtv1.VirtualMachineInstanceStatus) {
			s.Conditions = []kubevirtv1.Condition{{Type: kubevirtv1.ConditionPaused, Status: "True"}}
		}, "", "nothing but the state of the migration"},
		"the guest moves by itself": {
			func(s *kubevirtv1.VirtualMachineInstanceStatus) { s.NodeName = target }, notThisNode,
			"nothing but the state of the migration",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			controller := cluster.Client(t, controlplane.Controller)
			vmi := newInstance(cluster.Namespace(t))
			admitted(t, controller.Create(t.Context(), vmi))
			vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.ActivePods = kubevirtv1.PhaseRunning, source, map[types.UID]string{"p": source}
			vmi.Status.MigrationState = &kubevirtv1.MigrationState{
				MigrationUID: "m", SourceNode: source, SourcePod: "s",
				TargetNode: target, TargetPod: "t", StartTimestamp: now,
			}
			admitted(t, controller.Status().Update(t.Context(), vmi))
			base := vmi.DeepCopy()
			c.edit(&vmi.Status)
			for node, says := range map[string]string{source: c.source, target: c.target, other: notThisNode} {
				err := cluster.Client(t, controlplane.HandlerOn(node)).Status().Patch(t.Context(), vmi.DeepCopy(),
					client.MergeFrom(base), client.DryRunAll)
				if says == "" {
					admitted(t, err)
					continue
				}
				refused(t, err, says, notThisNode, state, "nothing but the state of the migration")
			}
			// After the end nobody but the controller changes it.
			base.Status.MigrationState.Failed = true
			admitted(t, controller.Status().Update(t.Context(), base))
			after := base.DeepCopy()
			after.Status.MigrationState.Failed, after.Status.MigrationState.Completed = false, true
			for _, node := range []string{source, target} {
				refused(t, cluster.Client(t, controlplane.HandlerOn(node)).Status().Patch(t.Context(), after.DeepCopy(),
					client.MergeFrom(base), client.DryRunAll), state, notThisNode)
			}
		})
	}
}
