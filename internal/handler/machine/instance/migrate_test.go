package instance

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/launcher/launcherpb"
)

func TestDecideMigration(t *testing.T) {
	t.Parallel()
	at := func(phase launcherpb.Migration_Phase) *launcherpb.State {
		return &launcherpb.State{
			Phase: launcherpb.State_RUNNING, Migration: &launcherpb.Migration{Uid: "m", Phase: phase, Message: "too busy"},
		}
	}
	ended := func(end launcherpb.State_End) *launcherpb.State {
		return &launcherpb.State{
			Phase: launcherpb.State_ENDED, End: end, Message: "QEMU died", Migration: &launcherpb.Migration{
				Uid:   "m",
				Phase: launcherpb.Migration_ENDED,
			},
		}
	}
	elsewhere := ended(launcherpb.State_MIGRATED)
	elsewhere.Migration.Uid = "before"
	other := at(launcherpb.Migration_FAILED)
	other.Migration.Uid = "before"
	for name, c := range map[string]struct {
		launcher       *launcherpb.State
		silent, stops  bool
		abort, noReady bool
		want           migrationDecision
	}{
		"no answer yet":           {},
		"silent":                  {launcher: at(0), silent: true},
		"the target is not ready": {launcher: &launcherpb.State{Phase: launcherpb.State_RUNNING}, noReady: true},
		"the target is ready": {
			launcher: &launcherpb.State{Phase: launcherpb.State_RUNNING},
			want:     migrationDecision{Begin: true},
		},
		"after an earlier one": {launcher: other, want: migrationDecision{Begin: true}},
		"it moves":             {launcher: at(launcherpb.Migration_RUNNING)},
		"an abort while it moves": {
			launcher: at(launcherpb.Migration_RUNNING), abort: true,
			want: migrationDecision{Cancel: "the migration was aborted"},
		},
		"a stop while it moves": {
			launcher: at(launcherpb.Migration_RUNNING), stops: true,
			want: migrationDecision{Cancel: "the machine is being stopped"},
		},
		"an abort before it moves": {
			launcher: other, abort: true,
			want: migrationDecision{GiveUp: "the migration was aborted"},
		},
		"an abort that nobody hears": {launcher: other, abort: true, silent: true},
		"it failed": {
			launcher: at(launcherpb.Migration_FAILED),
			want:     migrationDecision{Failed: "too busy"},
		},
		"the abort worked": {
			launcher: at(launcherpb.Migration_FAILED), abort: true,
			want: migrationDecision{Failed: "too busy"},
		},
		"it has moved": {
			launcher: ended(launcherpb.State_MIGRATED), silent: true,
			want: migrationDecision{Completed: true},
		},
		"it moved before the abort": {
			launcher: ended(launcherpb.State_MIGRATED), abort: true, stops: true,
			want: migrationDecision{Completed: true},
		},
		"one that was given up moved it": {
			launcher: elsewhere,
			want:     migrationDecision{Failed: "the guest ended before it was moved: QEMU died"},
		},
		"the guest ended": {
			launcher: ended(launcherpb.State_CRASHED), silent: true, want: migrationDecision{Failed: "the guest ended before it was moved: QEMU died"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &kubevirtv1.MigrationState{MigrationUID: "m", TargetNodeAddress: "10.0.0.1:49152", AbortRequested: c.abort}
			if c.noReady {
				m.TargetNodeAddress = ""
			}
			got := decideMigration(migrationInput{Migration: m, Launcher: c.launcher, Answers: !c.silent, Stopping: c.stops})
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMigrationLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits               *kubevirtv1.MigrationConfiguration
		memory               string
		progress, completion int64
		bandwidth            uint64
	}{
		"defaults":        {memory: "4Gi", progress: 150, completion: 600},
		"less than a GiB": {memory: "64Mi", progress: 150, completion: 150},
		"a part of a GiB": {memory: "1025Mi", progress: 150, completion: 300},
		"no memory":       {progress: 150, completion: 150},
		"the configuration": {limits: &kubevirtv1.MigrationConfiguration{
			ProgressTimeout: ptr.To(int64(10)), CompletionTimeoutPerGiB: ptr.To(int64(20)), BandwidthPerMigration: ptr.To(resource.MustParse("64Mi")),
		}, memory: "2Gi", progress: 10, completion: 40, bandwidth: 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var memory *kubevirtv1.Memory
			if c.memory != "" {
				memory = &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse(c.memory))}
			}
			r := &launcherpb.MigrateRequest{}
			setMigrationLimits(r, c.limits, memory)
			if r.ProgressTimeoutSeconds != c.progress || r.CompletionTimeoutSeconds != c.completion ||
				r.BandwidthBytes != c.bandwidth {
				t.Errorf("%v", r)
			}
		})
	}
}
