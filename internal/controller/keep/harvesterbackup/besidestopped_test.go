package harvesterbackup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/definition"
)

// besideInput is a machine of KubeVirt's that has stopped, with a disk on a DataVolume.
func besideInput(t *testing.T) *input {
	t.Helper()
	in := stoppedInput(t)
	in.beside = true
	set := func(value any, path ...string) {
		if err := unstructured.SetNestedField(in.machine.Object, value, path...); err != nil {
			t.Fatal(err)
		}
	}
	set([]any{map[string]any{
		"name": "root", "dataVolume": map[string]any{"name": "web-root"},
	}}, "spec", "template", "spec", "volumes")
	set([]any{map[string]any{
		"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-29T07:00:00Z",
	}}, "status", "conditions")
	in.stopped = machineOf(in.machine)
	return in
}

// Beside KubeVirt, the machine itself says since when it does not run, and its DataVolumes are claims.
func TestPlan_besideRecordsTheLatestRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*input)
		run  string
	}{
		"no instance": {func(*input) {}, "2026-11-29T07:00:00Z"},
		"an instance that has ended": {func(in *input) {
			in.instance = &kubevirtv1.VirtualMachineInstance{
				ObjectMeta: metav1.ObjectMeta{UID: "i1"},
				Status:     kubevirtv1.VirtualMachineInstanceStatus{Phase: kubevirtv1.PhaseSucceeded},
			}
		}, "i1"},
	} {
		in := besideInput(t)
		c.edit(in)
		p := makePlan(in)
		if p.status == nil {
			t.Fatalf("%s: %+v", name, p)
		}
		want := []harvesterv1.StoppedClaim{{Name: "web-root", UID: "c1", Run: c.run}}
		if diff := cmp.Diff(want, p.status.Stopped.Claims); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if !hasRunSince(p.status.Stopped, "another") || hasRunSince(p.status.Stopped, c.run) {
			t.Errorf("%s: %+v", name, p.status.Stopped)
		}
	}
	behind := besideInput(t)
	if err := unstructured.SetNestedField(behind.machine.Object, true, "status", "created"); err != nil {
		t.Fatal(err)
	}
	const note = "KubeVirt to note that virtual machine app/web has stopped"
	if p := makePlan(behind); p.status != nil || !strings.Contains(p.waiting, note) {
		t.Errorf("a status of before the end: %+v", p)
	}
	created := besideInput(t)
	unstructured.RemoveNestedField(created.machine.Object, "status")
	const first = "to note that virtual machine app/web does not run"
	if p := makePlan(created); p.status != nil || !strings.Contains(p.waiting, first) {
		t.Errorf("no status yet: %+v", p)
	}
	gone := besideInput(t)
	gone.instance = &kubevirtv1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{UID: "i1", DeletionTimestamp: &metav1.Time{}},
		Status:     kubevirtv1.VirtualMachineInstanceStatus{Phase: kubevirtv1.PhaseSucceeded},
	}
	if p := makePlan(gone); p.status != nil || !strings.Contains(p.waiting, "which has ended, to go") {
		t.Errorf("an instance that goes: %+v", p)
	}
}

// Other controllers' pods, and those of no controller, may write.
func TestIsExportPod(t *testing.T) {
	t.Parallel()
	owned := func(kind, version string, controller bool) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{
			Kind: kind, APIVersion: version, Controller: &controller,
		}}}}
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"an export's":     {owned("VirtualMachineExport", "export.kubevirt.io/v1beta1", true), true},
		"another kind's":  {owned("VirtualMachineInstance", "kubevirt.io/v1", true), false},
		"another group's": {owned("VirtualMachineExport", "example.com/v1beta1", true), false},
		"not controlled":  {owned("VirtualMachineExport", "export.kubevirt.io/v1beta1", false), false},
		"nobody's":        {&corev1.Pod{}, false},
	} {
		if got := isExportPod(c.pod); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A machine's DataVolume is a claim of its name for the plan; its definition keeps the DataVolume.
func TestMachineOf_leavesTheMachineAsItIs(t *testing.T) {
	t.Parallel()
	in := besideInput(t)
	if got := claimOf(in.guestSpec(), "root"); got != "web-root" {
		t.Errorf("claim %q", got)
	}
	source, err := definition.Source(in.machine, nil)
	if err != nil || !strings.Contains(string(source.Spec.Raw), "dataVolume") {
		t.Errorf("%s: %v", source.Spec.Raw, err)
	}
}
