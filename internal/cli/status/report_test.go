package status

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/schedule"
)

// due is when the latest run of a test was due.
var due = time.Date(2026, 11, 29, 1, 0, 0, 0, time.UTC)

func newMachine(name string) kubevirtv1.VirtualMachine {
	vm := kubevirtv1.VirtualMachine{}
	vm.Namespace, vm.Name = "app", name
	return vm
}

// newBackup returns a backup of a machine that was made some hours before the latest run. Without a failure, it is
// good.
func newBackup(name, machine string, hoursBefore int, failure string) harvesterv1.VirtualMachineBackup {
	b := harvesterv1.VirtualMachineBackup{}
	b.Namespace, b.Name = "app", name
	b.Spec.Source = corev1.TypedLocalObjectReference{Kind: harvesterv1.SourceKind, Name: machine}
	b.CreationTimestamp = metav1.NewTime(due.Add(-time.Duration(hoursBefore) * time.Hour))
	if failure != "" {
		b.Status.Error = &harvesterv1.Error{Message: &failure}
		return b
	}
	b.Status.ReadyToUse = ptr.To(true)
	return b
}

// newSchedule returns a schedule of a machine that its controller has dealt with.
func newSchedule(name, machine string, runs ...harvesterv1.ScheduledRun) harvesterv1.ScheduleVMBackup {
	s := harvesterv1.ScheduleVMBackup{}
	s.Namespace, s.Name = "app", name
	s.Spec.VMBackupSpec.Source.Name, s.Spec.MaxFailure = machine, 4
	next := metav1.NewTime(due.Add(24 * time.Hour))
	s.Status.NextScheduleTime, s.Status.Runs = &next, runs
	return s
}

func TestNewReport(t *testing.T) {
	t.Parallel()
	run := func(result harvesterv1.RunResult, backup string) harvesterv1.ScheduledRun {
		return harvesterv1.ScheduledRun{Time: metav1.NewTime(due), Result: result, Backup: backup, Message: "m"}
	}
	good := func(backup string) harvesterv1.ScheduledRun {
		return harvesterv1.ScheduledRun{Time: metav1.NewTime(due), Result: harvesterv1.RunSucceeded, Backup: backup}
	}
	suspended := newSchedule("b", "web")
	suspended.Spec.Suspend = true
	type want struct {
		state    schedule.State
		message  string
		lastGood string
		points   int
	}
	for name, c := range map[string]struct {
		schedules []harvesterv1.ScheduleVMBackup
		backups   []harvesterv1.VirtualMachineBackup
		want      want
	}{
		"good": {
			[]harvesterv1.ScheduleVMBackup{newSchedule("a", "web", good("new"))},
			[]harvesterv1.VirtualMachineBackup{newBackup("old", "web", 24, ""), newBackup("new", "web", 0, "")},
			want{schedule.OK, "", "new", 2},
		},
		"failed, with an older good one": {
			[]harvesterv1.ScheduleVMBackup{newSchedule("a", "web", run(harvesterv1.RunFailed, "new"))},
			[]harvesterv1.VirtualMachineBackup{newBackup("old", "web", 24, ""), newBackup("new", "web", 0, "full")},
			want{schedule.Failed, "the run of 2026-11-29T01:00:00Z failed: m", "old", 1},
		},
		"the good one is gone": {
			[]harvesterv1.ScheduleVMBackup{newSchedule("a", "web", good("new"))},
			[]harvesterv1.VirtualMachineBackup{newBackup("old", "web", 24, "")},
			want{schedule.Overdue, "backup new of the latest run is not there any more", "old", 1},
		},
		"one of two is suspended": {
			[]harvesterv1.ScheduleVMBackup{suspended, newSchedule("a", "web", good("new"))},
			[]harvesterv1.VirtualMachineBackup{newBackup("new", "web", 0, "")},
			want{schedule.OK, "b: Suspended", "new", 1},
		},
		"one of two missed": {
			[]harvesterv1.ScheduleVMBackup{
				newSchedule("b", "web", run(harvesterv1.RunMissed, "")),
				newSchedule("a", "web", good("new")),
			},
			[]harvesterv1.VirtualMachineBackup{newBackup("new", "web", 0, "")},
			want{schedule.Overdue, "b: Overdue, the run of 2026-11-29T01:00:00Z was missed: m", "new", 1},
		},
		"no schedule": {
			nil,
			[]harvesterv1.VirtualMachineBackup{newBackup("b", "web", 0, "")},
			want{NoSchedule, "", "b", 1},
		},
		"no schedule, and the last one failed": {
			nil,
			[]harvesterv1.VirtualMachineBackup{newBackup("old", "web", 24, ""), newBackup("new", "web", 0, "full")},
			want{schedule.Failed, "backup new failed: full", "old", 1},
		},
		"no schedule, and the last one is good": {
			nil,
			[]harvesterv1.VirtualMachineBackup{newBackup("old", "web", 24, "full"), newBackup("new", "web", 0, "")},
			want{NoSchedule, "", "new", 1},
		},
	} {
		seen := &objects{}
		seen.schedules.Items, seen.backups.Items = c.schedules, c.backups
		seen.machines.Items = []kubevirtv1.VirtualMachine{newMachine("web"), newMachine("bare")}
		r := newReport(seen, due.Add(time.Hour))
		if len(r.Items) != 1 || r.Total.Unprotected != 1 {
			t.Fatalf("%s: %+v", name, r)
		}
		m := r.Items[0]
		got := want{state: m.State, message: m.Message, points: m.RestorePoints}
		if m.LastGood != nil {
			got.lastGood = m.LastGood.Backup
		}
		attention := c.want.state == schedule.Failed || c.want.state == schedule.Overdue
		if got != c.want || m.NeedsAttention != attention || (r.Total.NeedAttention == 1) != attention {
			t.Errorf("%s: %+v (needs attention: %v), want %+v", name, got, m.NeedsAttention, c.want)
		}
	}
}

// Machines that need attention come first, and every state has a weight.
func TestNewReport_putsFirstWhatNeedsAttention(t *testing.T) {
	t.Parallel()
	seen := &objects{}
	failed := harvesterv1.ScheduledRun{Time: metav1.NewTime(due), Result: harvesterv1.RunFailed}
	seen.schedules.Items = []harvesterv1.ScheduleVMBackup{
		newSchedule("a", "app"), newSchedule("b", "web", failed),
		newSchedule("c", "mail"),
	}
	r := newReport(seen, due.Add(time.Hour))
	if len(r.Items) != 3 || r.Items[0].Machine != "web" || r.Items[1].Machine != "app" || r.Items[2].Machine != "mail" {
		t.Errorf("%+v", r.Items)
	}
	if text := r.Total.describe("namespace app"); text != "3 machines with schedules or backups in namespace app: "+
		"1 Failed, 2 New; 0 restore points" {
		t.Error(text)
	}
}

// A machine that was made again has no good backup until one of the new machine is good.
func TestNewReport_machineMadeAgain(t *testing.T) {
	t.Parallel()
	of := func(name string, hoursBefore int, uid types.UID) harvesterv1.VirtualMachineBackup {
		b := newBackup(name, "web", hoursBefore, "")
		b.Status.SourceUID = &uid
		return b
	}
	run := func(result harvesterv1.RunResult, backup string) harvesterv1.ScheduledRun {
		return harvesterv1.ScheduledRun{Time: metav1.NewTime(due), Result: result, Backup: backup}
	}
	suspended := newSchedule("a", "web", run(harvesterv1.RunSucceeded, "old"))
	suspended.Spec.Suspend = true
	for name, c := range map[string]struct {
		schedules []harvesterv1.ScheduleVMBackup
		backups   []harvesterv1.VirtualMachineBackup
		state     schedule.State
		message   string
	}{
		"its backup is of the one before": {
			[]harvesterv1.ScheduleVMBackup{newSchedule("a", "web", run(harvesterv1.RunSucceeded, "old"))},
			[]harvesterv1.VirtualMachineBackup{of("old", 0, "before")},
			schedule.Overdue,
			madeAgain,
		},
		"the first one of the new one runs": {
			[]harvesterv1.ScheduleVMBackup{
				newSchedule("a", "web", run(harvesterv1.RunStarted, "new"), run(harvesterv1.RunSucceeded, "old")),
			},
			[]harvesterv1.VirtualMachineBackup{of("old", 0, "before")},
			schedule.Overdue,
			madeAgain + "; backup new runs",
		},
		"its schedule was made again, too": {
			[]harvesterv1.ScheduleVMBackup{newSchedule("a", "web")},
			[]harvesterv1.VirtualMachineBackup{of("old", 0, "before")},
			schedule.Overdue,
			madeAgain + "; it waits for its first run",
		},
		"a newer run succeeded": {
			[]harvesterv1.ScheduleVMBackup{newSchedule("a", "web", run(harvesterv1.RunSucceeded, "new"))},
			[]harvesterv1.VirtualMachineBackup{of("new", 0, "now"), of("old", 24, "before")},
			schedule.OK,
			"",
		},
		"its schedule is suspended": {
			[]harvesterv1.ScheduleVMBackup{suspended},
			[]harvesterv1.VirtualMachineBackup{of("old", 0, "before")},
			schedule.Suspended,
			madeAgain,
		},
		"no schedule": {nil, []harvesterv1.VirtualMachineBackup{of("old", 0, "before")}, NoSchedule, madeAgain},
		"nobody knows of which machine it is": {
			[]harvesterv1.ScheduleVMBackup{newSchedule("a", "web", run(harvesterv1.RunSucceeded, "old"))},
			[]harvesterv1.VirtualMachineBackup{newBackup("old", "web", 0, "")},
			schedule.OK,
			"",
		},
	} {
		seen := &objects{}
		seen.schedules.Items, seen.backups.Items = c.schedules, c.backups
		web := newMachine("web")
		web.UID = "now"
		seen.machines.Items = []kubevirtv1.VirtualMachine{web}
		m := newReport(seen, due.Add(time.Hour)).Items[0]
		if m.State != c.state || m.Message != c.message || m.MadeAgain != (strings.HasPrefix(c.message, madeAgain)) ||
			m.NeedsAttention != c.state.NeedsAttention() {
			t.Errorf("%s: %s %q, made again %v", name, m.State, m.Message, m.MadeAgain)
		}
	}
	seen := &objects{}
	seen.backups.Items = []harvesterv1.VirtualMachineBackup{of("old", 0, "before")}
	if m := newReport(seen, due).Items[0]; m.MadeAgain || m.Message != "the machine does not exist any more" {
		t.Errorf("a machine that does not exist: %+v", m)
	}
}
