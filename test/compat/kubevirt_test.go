package compat

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "kubevirt.io/api/core/v1"
	kjson "sigs.k8s.io/json"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

func TestKubeVirtTypesAreUpstreams(t *testing.T) {
	t.Parallel()
	kv := full[kubevirtv1.KubeVirt](t)
	vm := full[kubevirtv1.VirtualMachine](t)
	vmi := full[kubevirtv1.VirtualMachineInstance](t)
	vmim := full[kubevirtv1.VirtualMachineInstanceMigration](t)
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "name", Labels: map[string]string{"a": "b"}}
	kv.ObjectMeta, vm.ObjectMeta, vmi.ObjectMeta, vmim.ObjectMeta = meta, meta, meta, meta
	vm.Spec.Template.ObjectMeta = kubevirtv1.TemplateMetadata{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}

	t.Run("KubeVirt", func(t *testing.T) { t.Parallel(); roundTrip(t, kv, &upstream.KubeVirt{}) })
	t.Run("VirtualMachine", func(t *testing.T) { t.Parallel(); roundTrip(t, vm, &upstream.VirtualMachine{}) })
	t.Run("VirtualMachineInstance", func(t *testing.T) { t.Parallel(); roundTrip(t, vmi, &upstream.VirtualMachineInstance{}) })
	t.Run("VirtualMachineInstanceMigration", func(t *testing.T) {
		t.Parallel()
		roundTrip(t, vmim, &upstream.VirtualMachineInstanceMigration{})
	})
}

// roundTrip checks that theirs has every field of ours, and that nothing of ours is lost or changed on the way
// through theirs.
func roundTrip[Ours, Theirs any](t *testing.T, ours *Ours, theirs *Theirs) {
	t.Helper()
	if zero := zeroFields(reflect.ValueOf(ours).Elem(), ""); len(zero) > 0 {
		t.Fatalf("not filled, so not tested: %v", zero)
	}
	sent, err := json.Marshal(ours)
	if err != nil {
		t.Fatal(err)
	}
	decodeStrictly(t, sent, theirs)
	returned, err := json.Marshal(theirs)
	if err != nil {
		t.Fatal(err)
	}
	// Not strict: upstream marshals some of its own fields even if they are empty.
	back := new(Ours)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(returned, back); err != nil {
		t.Fatalf("decode what upstream encodes: %v", err)
	}
	if diff := cmp.Diff(ours, back); diff != "" {
		t.Errorf("lost or changed on the way through upstream's type:\n%s", diff)
	}
	again, err := json.Marshal(back)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(sent), string(again)); diff != "" {
		t.Error(diff)
	}
}

// decodeStrictly fails on unknown, duplicate and misspelled fields.
func decodeStrictly(t *testing.T, content []byte, into any) {
	t.Helper()
	strict, err := kjson.UnmarshalStrict(content, into)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	for _, e := range strict {
		t.Errorf("decode strictly: %v", e)
	}
}

// Constants are sent as strings.
func TestKubeVirtConstantsAreUpstreams(t *testing.T) {
	t.Parallel()
	pairs := [][2]string{
		{string(kubevirtv1.RunStrategyAlways), string(upstream.RunStrategyAlways)},
		{string(kubevirtv1.RunStrategyHalted), string(upstream.RunStrategyHalted)},
		{string(kubevirtv1.RunStrategyManual), string(upstream.RunStrategyManual)},
		{string(kubevirtv1.RunStrategyRerunOnFailure), string(upstream.RunStrategyRerunOnFailure)},
		{string(kubevirtv1.StartRequest), string(upstream.StartRequest)},
		{string(kubevirtv1.StopRequest), string(upstream.StopRequest)},
		{string(kubevirtv1.PhasePending), string(upstream.Pending)},
		{string(kubevirtv1.PhaseScheduling), string(upstream.Scheduling)},
		{string(kubevirtv1.PhaseScheduled), string(upstream.Scheduled)},
		{string(kubevirtv1.PhaseRunning), string(upstream.Running)},
		{string(kubevirtv1.PhaseSucceeded), string(upstream.Succeeded)},
		{string(kubevirtv1.PhaseFailed), string(upstream.Failed)},
		{string(kubevirtv1.ChangedBlockTrackingPendingRestart), string(upstream.ChangedBlockTrackingPendingRestart)},
		{string(kubevirtv1.ChangedBlockTrackingInitializing), string(upstream.ChangedBlockTrackingInitializing)},
		{string(kubevirtv1.ChangedBlockTrackingEnabled), string(upstream.ChangedBlockTrackingEnabled)},
		{string(kubevirtv1.ChangedBlockTrackingDisabled), string(upstream.ChangedBlockTrackingDisabled)},
		{string(kubevirtv1.ChangedBlockTrackingFGDisabled), string(upstream.ChangedBlockTrackingFGDisabled)},
		{string(kubevirtv1.VolumePending), string(upstream.VolumePending)},
		{string(kubevirtv1.VolumeAttachedToNode), string(upstream.HotplugVolumeAttachedToNode)},
		{string(kubevirtv1.VolumeMountedToPod), string(upstream.HotplugVolumeMounted)},
		{string(kubevirtv1.VolumeReady), string(upstream.VolumeReady)},
		{string(kubevirtv1.VolumeDetaching), string(upstream.HotplugVolumeDetaching)},
		{string(kubevirtv1.VolumeUnMountedFromPod), string(upstream.HotplugVolumeUnMounted)},
		{string(kubevirtv1.UtilityVolumeBackup), string(upstream.Backup)},
		{string(kubevirtv1.MigrationPending), string(upstream.MigrationPending)},
		{string(kubevirtv1.MigrationScheduling), string(upstream.MigrationScheduling)},
		{string(kubevirtv1.MigrationScheduled), string(upstream.MigrationScheduled)},
		{string(kubevirtv1.MigrationPreparingTarget), string(upstream.MigrationPreparingTarget)},
		{string(kubevirtv1.MigrationTargetReady), string(upstream.MigrationTargetReady)},
		{string(kubevirtv1.MigrationRunning), string(upstream.MigrationRunning)},
		{string(kubevirtv1.MigrationSucceeded), string(upstream.MigrationSucceeded)},
		{string(kubevirtv1.MigrationFailed), string(upstream.MigrationFailed)},
		{string(kubevirtv1.MigrationPreCopy), string(upstream.MigrationPreCopy)},
		{string(kubevirtv1.MigrationAbortRequested), string(upstream.VirtualMachineInstanceMigrationAbortRequested)},
		{string(kubevirtv1.MigrationRejectedByResourceQuota), string(upstream.VirtualMachineInstanceMigrationRejectedByResourceQuota)},
		{string(kubevirtv1.MigrationBlockedByUtilityVolumes), string(upstream.VirtualMachineInstanceMigrationBlockedByUtilityVolumes)},
		{string(kubevirtv1.MigrationBlockedByBackup), string(upstream.VirtualMachineInstanceMigrationBlockedByBackup)},
		{layout.LabelMigrationJob, upstream.MigrationJobLabel},
		{layout.LabelMigrationTarget, upstream.MigrationTargetNodeNameLabel},
		{string(kubevirtv1.ConditionReady), string(upstream.VirtualMachineInstanceReady)},
		{string(kubevirtv1.ConditionPaused), string(upstream.VirtualMachineInstancePaused)},
		{string(kubevirtv1.ConditionAgentConnected), string(upstream.VirtualMachineInstanceAgentConnected)},
		{string(kubevirtv1.ConditionLiveMigratable), string(upstream.VirtualMachineInstanceIsMigratable)},
		{string(kubevirtv1.ConditionSynchronized), string(upstream.VirtualMachineInstanceSynchronized)},
		{string(kubevirtv1.ConditionFailure), string(upstream.VirtualMachineFailure)},
		{string(kubevirtv1.ConditionRestartRequired), string(upstream.VirtualMachineRestartRequired)},
		{string(kubevirtv1.VirtualMachineStopped), string(upstream.VirtualMachineStatusStopped)},
		{string(kubevirtv1.VirtualMachineStarting), string(upstream.VirtualMachineStatusStarting)},
		{string(kubevirtv1.VirtualMachineRunning), string(upstream.VirtualMachineStatusRunning)},
		{string(kubevirtv1.VirtualMachinePaused), string(upstream.VirtualMachineStatusPaused)},
		{string(kubevirtv1.VirtualMachineStopping), string(upstream.VirtualMachineStatusStopping)},
		{string(kubevirtv1.VirtualMachineTerminating), string(upstream.VirtualMachineStatusTerminating)},
		{string(kubevirtv1.VirtualMachineCrashLoopBackOff), string(upstream.VirtualMachineStatusCrashLoopBackOff)},
		{string(kubevirtv1.VirtualMachineUnschedulable), string(upstream.VirtualMachineStatusUnschedulable)},
		{string(kubevirtv1.VirtualMachineErrImagePull), string(upstream.VirtualMachineStatusErrImagePull)},
		{string(kubevirtv1.VirtualMachinePvcNotFound), string(upstream.VirtualMachineStatusPvcNotFound)},
		{string(kubevirtv1.VirtualMachineWaitingForVolumeBinding), string(upstream.VirtualMachineStatusWaitingForVolumeBinding)},
	}
	for _, p := range pairs {
		if p[0] != p[1] {
			t.Errorf("%q is %q upstream", p[0], p[1])
		}
	}
	if got := kubevirtv1.GroupVersion.String(); got != upstream.GroupVersion.String() {
		t.Errorf("group and version %s", got)
	}
}
