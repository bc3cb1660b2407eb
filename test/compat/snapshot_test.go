package compat

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	upstream "kubevirt.io/api/snapshot/v1beta1"
	kjson "sigs.k8s.io/json"

	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
)

// Every field is one of KubeVirt's, but for those with which the controller and the handler freeze the guest.
func TestSnapshotTypesAreUpstreams(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "name", UID: "1", Labels: map[string]string{"a": "b"}}
	snapshot := full[vmsnapshotv1.VirtualMachineSnapshot](t)
	snapshot.ObjectMeta = meta
	own := map[string]string{"InstanceUID": "instanceUID", "NodeName": "nodeName", "Quiesce": "quiesce"}
	for name, json := range own {
		field, _ := reflect.TypeFor[vmsnapshotv1.VirtualMachineSnapshotStatus]().FieldByName(name)
		if field.Tag.Get("json") != json+",omitempty" {
			t.Errorf("field %s is %q", name, field.Tag)
		}
	}
	snapshot.Status.InstanceUID, snapshot.Status.NodeName, snapshot.Status.Quiesce = "", "", nil
	through(t, snapshot, &upstream.VirtualMachineSnapshot{})

	content := full[vmsnapshotv1.VirtualMachineSnapshotContent](t)
	content.ObjectMeta = meta
	for i := range content.Spec.VolumeBackups {
		content.Spec.VolumeBackups[i].PersistentVolumeClaim.ObjectMeta = meta
	}
	machine := []byte(`{"metadata":{"name":"vm","namespace":"ns","uid":"1"},"spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"devices":{}}}}}}`)
	content.Spec.Source.VirtualMachine = &runtime.RawExtension{Raw: machine}
	theirs := &upstream.VirtualMachineSnapshotContent{}
	sent, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	decodeStrictly(t, sent, theirs)
	if vm := theirs.Spec.Source.VirtualMachine; vm == nil || vm.UID != types.UID("1") ||
		*vm.Spec.RunStrategy != "Halted" {
		t.Errorf("the machine: %+v", vm)
	}
	content.Spec.Source.VirtualMachine, theirs.Spec.Source.VirtualMachine = nil, nil
	through(t, content, theirs)
}

// through checks that theirs has every field of ours that is set, and that nothing of it is lost or changed.
func through[Ours, Theirs any](t *testing.T, ours *Ours, theirs *Theirs) {
	t.Helper()
	sent, err := json.Marshal(ours)
	if err != nil {
		t.Fatal(err)
	}
	decodeStrictly(t, sent, theirs)
	returned, err := json.Marshal(theirs)
	if err != nil {
		t.Fatal(err)
	}
	back := new(Ours)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(returned, back); err != nil {
		t.Fatalf("decode what upstream encodes: %v", err)
	}
	if diff := cmp.Diff(ours, back); diff != "" {
		t.Errorf("lost or changed on the way through upstream's type:\n%s", diff)
	}
}

func TestSnapshotConstantsAreUpstreams(t *testing.T) {
	t.Parallel()
	for _, p := range [][2]string{
		{string(vmsnapshotv1.InProgress), string(upstream.InProgress)},
		{string(vmsnapshotv1.Succeeded), string(upstream.Succeeded)},
		{string(vmsnapshotv1.Failed), string(upstream.Failed)},
		{string(vmsnapshotv1.Deleting), string(upstream.Deleting)},
		{string(vmsnapshotv1.ConditionReady), string(upstream.ConditionReady)},
		{string(vmsnapshotv1.ConditionProgressing), string(upstream.ConditionProgressing)},
		{string(vmsnapshotv1.ConditionFailure), string(upstream.ConditionFailure)},
		{string(vmsnapshotv1.Online), string(upstream.VMSnapshotOnlineSnapshotIndication)},
		{string(vmsnapshotv1.NoGuestAgent), string(upstream.VMSnapshotNoGuestAgentIndication)},
		{string(vmsnapshotv1.GuestAgent), string(upstream.VMSnapshotGuestAgentIndication)},
		{string(vmsnapshotv1.QuiesceTimeout), string(upstream.VMSnapshotQuiesceTimeoutIndication)},
		{string(vmsnapshotv1.Paused), string(upstream.VMSnapshotPausedIndication)},
		{string(vmsnapshotv1.DeleteContent), string(upstream.VirtualMachineSnapshotContentDelete)},
		{string(vmsnapshotv1.RetainContent), string(upstream.VirtualMachineSnapshotContentRetain)},
		{vmsnapshotv1.GroupVersion.String(), upstream.SchemeGroupVersion.String()},
	} {
		if p[0] != p[1] {
			t.Errorf("%q is %q upstream", p[0], p[1])
		}
	}
	if vmsnapshotv1.DefaultFailureDeadline != upstream.DefaultFailureDeadline {
		t.Errorf("the default deadline is %s, upstream's is %s", vmsnapshotv1.DefaultFailureDeadline,
			upstream.DefaultFailureDeadline)
	}
}
