package harvesterbackup

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/definition"
)

// A backup does not wait for ever for a guest that starts.
func TestPlan_waitsUntilADeadline(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	in := &input{
		backup:  &harvesterv1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "app", CreationTimestamp: metav1.NewTime(created)}},
		machine: definition.NewMachine(), instance: &kubevirtv1.VirtualMachineInstance{Status: kubevirtv1.VirtualMachineInstanceStatus{Phase: kubevirtv1.PhaseScheduling}},
	}
	in.backup.Spec.Source.Name = "web"
	in.now = created.Add(59 * time.Minute)
	if p := makePlan(in); p.waiting != "virtual machine app/web to run: its instance is Scheduling, until 2026-11-29T09:00:00Z" || p.refused != "" {
		t.Errorf("%+v", p)
	}
	in.now = created.Add(time.Hour)
	if p := makePlan(in); p.waiting != "" || !strings.HasPrefix(p.refused, "waited 1h0m0s for virtual machine app/web to run") {
		t.Errorf("%+v", p)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long.name-", 20)[:200]
	for _, name := range []string{"monday", "mon.day", long} {
		group := groupName(name, "u1")
		if why := validation.IsDNS1123Label(group); len(why) > 0 {
			t.Errorf("group %s: %v", group, why)
		}
		if groupName(name, "u2") == group {
			t.Errorf("two backups called %s have the group %s", name, group)
		}
	}
	at := harvesterv1.LocationReference{Namespace: "varve", Name: long}
	tracker := trackerName("m1", at)
	if why := validation.IsDNS1123Subdomain(tracker); len(why) > 0 || len(tracker) > 200 {
		t.Errorf("tracker %s: %v", tracker, why)
	}
	for _, other := range []string{trackerName("m2", at), trackerName("m1", harvesterv1.LocationReference{Namespace: "varve", Name: long + "x"})} {
		if other == tracker {
			t.Errorf("two trackers are called %s", tracker)
		}
	}
}

func TestScratchBytes(t *testing.T) {
	t.Parallel()
	const gib = int64(1) << 30
	for disk, want := range map[int64]int64{gib: gib, 20 * gib: 10 * gib, 2000 * gib: 200 * gib} {
		if got := scratchBytes([]harvesterv1.VolumeBackup{{VolumeSize: disk}}); got < want || got > want+100<<20 {
			t.Errorf("for %d bytes: %d, want about %d", disk, got, want)
		}
	}
}

// A DataUpload that was deleted after it had stored its disk takes nothing back.
func TestObserve_whatIsStoredStaysStored(t *testing.T) {
	t.Parallel()
	s := &harvesterv1.VirtualMachineBackupStatus{SourceUID: ptr.To(types.UID("m")), VolumeBackups: []harvesterv1.VolumeBackup{{VolumeName: "root", VolumeSize: 10, ReadyToUse: ptr.To(true), Progress: 100}}}
	if o := observe(s, time.Now(), nil); !o.stored || o.failed != "" {
		t.Errorf("%+v", o)
	}
}
