package arrival

import (
	"testing"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	idle := &launcherpb.State{}
	listening := &launcherpb.State{Migration: &launcherpb.Migration{Uid: "m", Phase: launcherpb.Migration_LISTENING}}
	running := &launcherpb.State{Phase: launcherpb.State_RUNNING, Migration: &launcherpb.Migration{
		Uid:   "m",
		Phase: launcherpb.Migration_ENDED,
	}}
	for name, c := range map[string]struct {
		launcher *launcherpb.State
		silent   bool
		edit     func(*kubevirtv1.MigrationState)
		want     action
	}{
		"it has not answered": {launcher: nil, want: nothing},
		"it is silent":        {launcher: listening, silent: true, want: nothing},
		"it is new":           {launcher: idle, want: prepare},
		"it listens":          {launcher: listening, want: report},
		"it was reported": {
			launcher: listening,
			edit:     func(s *kubevirtv1.MigrationState) { s.TargetNodeAddress = "a:1" }, want: nothing,
		},
		"the guest runs here": {
			launcher: running,
			edit:     func(s *kubevirtv1.MigrationState) { s.TargetNodeAddress = "a:1" }, want: detect,
		},
		"that was reported": {
			launcher: running,
			edit:     func(s *kubevirtv1.MigrationState) { s.TargetNodeDomainDetected = true; s.TargetNodeAddress = "a:1" }, want: nothing,
		},
		"an abort is the source's": {
			launcher: listening,
			edit:     func(s *kubevirtv1.MigrationState) { s.AbortRequested = true; s.TargetNodeAddress = "a:1" }, want: nothing,
		},
		"it failed": {
			launcher: listening, edit: func(s *kubevirtv1.MigrationState) { s.Failed = true },
			want: cancel,
		},
		"it failed before it began": {
			launcher: idle, edit: func(s *kubevirtv1.MigrationState) { s.Failed = true },
			want: cancel,
		},
		"it failed, and it runs here": {
			launcher: running, edit: func(s *kubevirtv1.MigrationState) { s.Failed = true },
			want: release,
		},
		"it completed": {
			launcher: running, edit: func(s *kubevirtv1.MigrationState) { s.Completed = true },
			want: release,
		},
		"it completed unheard": {
			launcher: listening, edit: func(s *kubevirtv1.MigrationState) { s.Completed = true },
			want: finish,
		},
		"both at once is a failure": {
			launcher: listening, edit: func(s *kubevirtv1.MigrationState) { s.Completed, s.Failed = true, true },
			want: cancel,
		},
		"another one has begun": {
			launcher: idle, edit: func(s *kubevirtv1.MigrationState) { s.MigrationUID = "n" },
			want: release,
		},
		"the launcher has ended": {launcher: &launcherpb.State{Phase: launcherpb.State_ENDED}, want: release},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := &kubevirtv1.MigrationState{MigrationUID: "m"}
			if c.edit != nil {
				c.edit(state)
			}
			if got := decide(input{State: state, Migration: "m", Launcher: c.launcher, Answers: !c.silent}); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
	if got := decide(input{Migration: "m", Launcher: idle, Answers: true}); got != release {
		t.Errorf("without a migration: %d", got)
	}
}
