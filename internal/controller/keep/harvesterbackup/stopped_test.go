package harvesterbackup

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/test/gen"
)

// stoppedInput is a machine that has run, and does not any more, with one disk.
func stoppedInput(t *testing.T) *input {
	t.Helper()
	created := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	claim := gen.Claim(metav1.ObjectMeta{Namespace: "app", Name: "web-root", UID: "c1"}, gen.SetSize("1Gi"))
	epoch, err := runepoch.Of(claim)
	if err != nil {
		t.Fatal(err)
	}
	if err := epoch.Begin("the last").Write(claim); err != nil {
		t.Fatal(err)
	}
	vm := gen.VirtualMachine(metav1.ObjectMeta{Namespace: "app", Name: "web", UID: "m1", Generation: 7},
		gen.Guest(gen.Disk("root", "web-root")), gen.SetRunStrategy(kubevirtv1.RunStrategyHalted))
	in := &input{
		now: created, stopped: vm, machine: definition.NewMachine(),
		backup: &harvesterv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{
			Namespace: "app", Name: "monday", UID: "b1", CreationTimestamp: metav1.NewTime(created),
		}},
		claims: map[string]*corev1.PersistentVolumeClaim{claim.Name: claim},
		locations: []velerov1.BackupStorageLocation{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "shelf"},
			Spec:       velerov1.BackupStorageLocationSpec{Default: true},
			Status:     velerov1.BackupStorageLocationStatus{Phase: velerov1.LocationAvailable},
		}},
	}
	in.backup.Spec.Source.Name = vm.Name
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(vm)
	if err != nil {
		t.Fatal(err)
	}
	in.machine = &unstructured.Unstructured{Object: fields}
	in.machine.SetGroupVersionKind(definition.MachineKind)
	return in
}

func podOn(claim string, readOnly bool, phase corev1.PodPhase) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "helper", UID: "p1"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: readOnly},
		}}}},
		Status: corev1.PodStatus{Phase: phase},
	}
}

// A stopped machine's backup writes down what a start changes.
func TestPlan_recordsWhatTellsAStart(t *testing.T) {
	t.Parallel()
	in := stoppedInput(t)
	in.pods = []corev1.Pod{
		podOn("web-root", false, corev1.PodSucceeded), podOn("web-root", true, corev1.PodRunning),
		podOn("another", false, corev1.PodRunning),
	}
	p := makePlan(in)
	if p.status == nil {
		t.Fatalf("%+v", p)
	}
	want := &harvesterv1.StoppedMachine{
		Generation: 7, Claims: []harvesterv1.StoppedClaim{{Name: "web-root", UID: "c1", Run: "the last"}},
		EndedPods: []types.UID{"p1"},
	}
	if diff := cmp.Diff(want, p.status.Stopped); diff != "" {
		t.Error(diff)
	}
	if p.status.ScratchBytes != 0 || p.status.NodeName != "" || len(p.status.VolumeBackups) != 1 {
		t.Errorf("%+v", p.status)
	}
}

func TestPlan_waitsForAMachineThatIsNotStopped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit          func(*input)
		waits, refuse string
	}{
		"it is to run": {func(in *input) {
			in.stopped.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyAlways)
		}, "web to run: its runStrategy is Always", ""},
		"somebody has started it": {func(in *input) {
			in.stopped.Status.StateChangeRequests = []kubevirtv1.StateChangeRequest{{Action: kubevirtv1.StartRequest}}
		}, "web to run: somebody has started it", ""},
		"its guest is being stopped": {func(in *input) {
			in.stopped = nil
			in.instance = &kubevirtv1.VirtualMachineInstance{
				ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}},
				Status:     kubevirtv1.VirtualMachineInstanceStatus{Phase: kubevirtv1.PhaseRunning},
			}
		}, "web to have stopped", ""},
		"its launcher has not ended": {func(in *input) {
			in.pods = []corev1.Pod{podOn("web-root", false, corev1.PodRunning)}
		}, "pod helper to end, which can write to PersistentVolumeClaim web-root", ""},
		"another backup of it": {
			func(in *input) { in.earlier = "sunday" },
			"VirtualMachineBackup sunday of the machine", "",
		},
		"its claim is away": {
			func(in *input) { in.claims = nil }, "PersistentVolumeClaim web-root of volume root",
			"",
		},
		"a record nobody can read": {func(in *input) {
			in.claims["web-root"].Annotations[layout.AnnotationRunEpoch] = "{"
		}, "", "read annotation " + layout.AnnotationRunEpoch},
		"no template": {func(in *input) { in.stopped = nil }, "", "it has no template"},
	} {
		in := stoppedInput(t)
		c.edit(in)
		p := makePlan(in)
		if p.status != nil || !strings.Contains(p.waiting, c.waits) || !strings.Contains(p.refused, c.refuse) ||
			(p.waiting == "") != (c.waits == "") {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
