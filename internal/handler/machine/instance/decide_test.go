package instance

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func vmi(edit ...func(*kubevirtv1.VirtualMachineInstance)) *kubevirtv1.VirtualMachineInstance {
	v := &kubevirtv1.VirtualMachineInstance{}
	v.Status.Phase = kubevirtv1.PhaseRunning
	v.Spec.TerminationGracePeriodSeconds = ptr.To(int64(42))
	for _, f := range edit {
		f(v)
	}
	return v
}

func deletedAt(at time.Time) func(*kubevirtv1.VirtualMachineInstance) {
	return func(v *kubevirtv1.VirtualMachineInstance) { v.DeletionTimestamp = ptr.To(metav1.NewTime(at)) }
}

func force(v *kubevirtv1.VirtualMachineInstance) {
	v.Annotations = map[string]string{layout.AnnotationForceStop: "true"}
}

func final(v *kubevirtv1.VirtualMachineInstance) { v.Status.Phase = kubevirtv1.PhaseFailed }

func migrates(edit func(*kubevirtv1.MigrationState)) func(*kubevirtv1.VirtualMachineInstance) {
	return func(v *kubevirtv1.VirtualMachineInstance) {
		v.Status.MigrationState = &kubevirtv1.MigrationState{MigrationUID: "m", TargetNode: "other"}
		edit(v.Status.MigrationState)
	}
}

func TestDecide_leavesAGuestThatMovesAlone(t *testing.T) {
	t.Parallel()
	moves := func(*kubevirtv1.MigrationState) {}
	moved := func(m *kubevirtv1.MigrationState) { m.Completed = true }
	failed := func(m *kubevirtv1.MigrationState) { m.Failed = true }
	stopping := deletedAt(now.Add(-time.Minute))
	listening := &pb.State{Migration: &pb.Migration{Uid: "m", Phase: pb.Migration_LISTENING}}
	running := &pb.State{Phase: pb.State_RUNNING}
	for name, c := range map[string]struct {
		vmi    *kubevirtv1.VirtualMachineInstance
		state  *pb.State
		holder string
		want   decision
	}{
		"it moves": {vmi: vmi(migrates(moves)), state: running},
		"it moves and is deleted": {vmi: vmi(migrates(moves), stopping), state: running, want: decision{
			Action: hold, DelayReason: ReasonMigrationInProgress,
			Delayed: "the migration to node other is being cancelled: the guest is stopped when that is done",
		}},
		"it has left": {vmi: vmi(migrates(moves), stopping), state: &pb.State{
			Phase: pb.State_ENDED,
			End:   pb.State_MIGRATED,
		}, want: decision{Action: exit}},
		"it failed and is deleted": {vmi: vmi(migrates(failed), stopping), state: running, want: decision{
			Action: shutdown,
			Grace:  42,
		}},
		"it arrived unheard": {vmi: vmi(migrates(moved)), state: listening, want: decision{Action: finish}},
		"it arrived":         {vmi: vmi(migrates(moved)), state: running},
		"it arrived and is deleted": {vmi: vmi(migrates(moved), stopping), state: running, want: decision{
			Action: shutdown,
			Grace:  42,
		}},
		"a target is never started": {vmi: vmi(), state: listening},
		"a target of a failed one":  {vmi: vmi(migrates(failed)), state: listening},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := decide(input{
				Now: now, Instance: c.vmi, State: c.state, Answers: true, Holder: c.holder,
				StopWaitsForBackup: time.Minute,
			})
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecide_whatTheLauncherIsTold(t *testing.T) {
	t.Parallel()
	stopping := deletedAt(now.Add(-time.Minute))
	tests := []struct {
		name       string
		vmi        *kubevirtv1.VirtualMachineInstance
		phase      pb.State_Phase
		silent     bool
		holder     string
		unreported bool
		want       action
		abort      bool
	}{
		{name: "idle", vmi: vmi(), phase: pb.State_IDLE, want: start},
		{name: "idle and silent", vmi: vmi(), phase: pb.State_IDLE, silent: true},
		{name: "idle and deleted", vmi: vmi(stopping), phase: pb.State_IDLE, want: shutdown},
		{name: "idle and final", vmi: vmi(final), phase: pb.State_IDLE},
		{name: "runs", vmi: vmi(), phase: pb.State_RUNNING},
		{name: "force without deletion is nothing", vmi: vmi(force), phase: pb.State_RUNNING, holder: "b"},
		{name: "deleted", vmi: vmi(stopping), phase: pb.State_RUNNING, want: shutdown},
		{name: "deleted while it starts", vmi: vmi(stopping), phase: pb.State_STARTING, want: shutdown},
		{name: "deleted while paused", vmi: vmi(stopping), phase: pb.State_PAUSED, want: shutdown},
		{name: "held by a backup", vmi: vmi(stopping), phase: pb.State_RUNNING, holder: "b", want: hold},
		{name: "held too long", vmi: vmi(deletedAt(now.Add(-10 * time.Minute))), phase: pb.State_RUNNING, holder: "b", want: shutdown},
		{name: "forced", vmi: vmi(stopping, force), phase: pb.State_RUNNING, holder: "b", want: shutdown, abort: true},
		{name: "already stopping", vmi: vmi(stopping), phase: pb.State_SHUTTING_DOWN},
		{name: "ended", vmi: vmi(), phase: pb.State_ENDED, want: exit},
		{name: "ended, a backup waits for its outcome", vmi: vmi(stopping), phase: pb.State_ENDED, unreported: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := decide(input{
				Now: now, Instance: test.vmi, State: &pb.State{Phase: test.phase}, Answers: !test.silent, Holder: test.holder,
				Unreported: test.unreported, StopWaitsForBackup: 10 * time.Minute,
			})
			if d.Action != test.want || d.Abort != test.abort {
				t.Errorf("%+v, want action %d", d, test.want)
			}
			if test.want == shutdown && d.Grace != 42 {
				t.Errorf("grace %d", d.Grace)
			}
			if test.want == hold && (!d.Wake.Equal(now.Add(9*time.Minute)) || !strings.Contains(d.Delayed, "b runs") || !strings.Contains(d.Delayed, "03:13:05Z")) {
				t.Errorf("%+v", d)
			}
		})
	}
	if d := decide(input{Now: now, Instance: vmi(stopping), Answers: true}); d.Action != nothing {
		t.Errorf("a launcher that was not heard was asked: %+v", d)
	}
}
