package harvesterbackup

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
)

func TestLimitFreeze(t *testing.T) {
	t.Parallel()
	for asked, want := range map[time.Duration]time.Duration{
		0: 5 * time.Minute, 20 * time.Second: 20 * time.Second, time.Hour: 5 * time.Minute,
	} {
		in := snapshotInput(t)
		in.backup.Spec.FSFreezeDeadline = &metav1.Duration{Duration: asked}
		s := newSnapshot(&harvesterv1.VirtualMachineBackup{
			ObjectMeta: in.backup.ObjectMeta, Spec: in.backup.Spec,
		})
		limitFreeze(in.backup, s)
		if got := s.Spec.FailureDeadline.Duration; got != want {
			t.Errorf("%s: %s", asked, got)
		}
	}
}

func TestPlan_besideRefusesASnapshotWithoutFreeze(t *testing.T) {
	t.Parallel()
	in := snapshotInput(t)
	in.backup.Annotations = map[string]string{harvesterv1.AnnotationFreeze: "false"}
	if p := makePlan(in); p.refused != "" {
		t.Errorf("with Varve's own runtime: %+v", p)
	}
	in.beside = true
	if p := makePlan(in); !strings.Contains(p.refused, "KubeVirt freezes the guest of each snapshot") {
		t.Errorf("%+v", p)
	}
}

// A snapshot that nobody makes ends.
func TestDescribeLateSnapshot(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)
	s := &vmsnapshotv1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{
		Name: "g", CreationTimestamp: metav1.NewTime(made),
	}}
	if got := describeLateSnapshot(s, made.Add(6*time.Hour)); got != "" {
		t.Errorf("in time: %q", got)
	}
	late := made.Add(7 * time.Hour)
	const waited = "waited 6h10m0s for VirtualMachineSnapshot g to be ready"
	if got := describeLateSnapshot(s, late); !strings.HasPrefix(got, waited) {
		t.Errorf("late: %q", got)
	}
	s.Status = &vmsnapshotv1.VirtualMachineSnapshotStatus{ReadyToUse: ptr.To(true)}
	if got := describeLateSnapshot(s, late); got != "" {
		t.Errorf("ready: %q", got)
	}
}

// A feature gate that is off shows as a reason, with its name.
func TestNameGate(t *testing.T) {
	t.Parallel()
	r := &reconciler{Options: Options{BesideKubeVirt: true}}
	const denied = "create VirtualMachineSnapshot x: denied the request: snapshot feature gate not enabled"
	got := r.nameGate(denied, gateSnapshot)
	if !strings.HasPrefix(got, denied+". KubeVirt needs its feature gate Snapshot") || r.nameGate("", gateSnapshot) != "" {
		t.Errorf("%q", got)
	}
	if got := r.nameGate("create x: exceeded quota", gateSnapshot); got != "create x: exceeded quota" {
		t.Errorf("a refusal for something else: %q", got)
	}
	if got := (&reconciler{}).nameGate(denied, gateSnapshot); got != denied {
		t.Errorf("with Varve's own runtime: %q", got)
	}
}
