package launcher

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/domain"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/relay"
)

// These tests run without a bubble: the two launchers speak to each other through the kernel.

var migrationToken = bytes.Repeat([]byte{7}, 32)

// await waits for a state.
func (b *bench) await(what string, holds func(*pb.State) bool) *pb.State {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	for {
		s, changed := b.State()
		if holds(s) {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			b.t.Fatalf("not in time: %s; last state: %v", what, s)
		}
	}
}

func (b *bench) awaitMigration(phase pb.Migration_Phase) *pb.State {
	b.t.Helper()
	return b.await("the migration is "+phase.String(), func(s *pb.State) bool { return s.Migration.GetPhase() == phase })
}

// end ends the launcher and returns its outcome.
func (b *bench) end() Outcome {
	b.t.Helper()
	if _, err := b.Exit(b.t.Context(), &pb.ExitRequest{}); err != nil {
		b.t.Error(err)
	}
	b.cancel()
	return <-b.outcome
}

// newTargetBench returns a launcher that is prepared for migration m.
func newTargetBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	if err := os.WriteFile(b.overlays.Path("root"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it can be repeated
		if _, err := b.PrepareMigration(t.Context(), &pb.PrepareMigrationRequest{
			Uid: "m", Token: migrationToken,
			Start: startRequest(t),
		}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// arrived is what libvirt does on the target when the source has sent everything.
func (b *bench) arrived() {
	b.guest.is(domain.StatePaused, domain.ReasonMigrating)
	b.guest.is(domain.StatePaused, domain.ReasonUser)
}

func (b *bench) migrate(address string) error {
	_, err := b.Migrate(b.t.Context(), &pb.MigrateRequest{Uid: "m", Address: address, Token: migrationToken})
	return err
}

// leave is what libvirt does on the source at the end.
func (b *bench) leave(err error) {
	b.guest.is(domain.StatePaused, domain.ReasonMigrating)
	b.guest.is(domain.StateShutOff, domain.ReasonMigrated)
	b.guest.moved <- err
}

func TestMigration_theTargetGoesOnOnceTheSourceIsGone(t *testing.T) {
	t.Parallel()
	// libvirt may fail after the guest has gone.
	for name, end := range map[string]error{"moved": nil, "moved with an error": errors.New("connection lost")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := newBench(t), newTargetBench(t)
			source.up()
			if err := source.migrate(target.address); err != nil {
				t.Fatal(err)
			}
			target.arrived()
			if s, _ := target.State(); s.Phase != pb.State_IDLE || target.guest.count("Resume") != 0 {
				t.Errorf("the target does not wait: %v", s)
			}
			source.leave(end)
			s := target.await("the guest goes on", func(s *pb.State) bool { return s.Phase == pb.State_RUNNING })
			if s.Migration.Phase != pb.Migration_ENDED || target.guest.count("Resume") != 1 || target.guest.count("Start") != 0 {
				t.Errorf("the target: %v, %v", s, target.guest.calls)
			}
			source.await("the source has ended", func(s *pb.State) bool { return s.Phase == pb.State_ENDED })
			if out := source.end(); out.End != pb.State_MIGRATED || out.ExitCode != 0 || len(source.overlays.clean) > 0 {
				t.Errorf("the source: %+v, clean %v", out, source.overlays.clean)
			}
			// The target's overlays were only used by the guest, and are clean when that has shut down.
			if o := target.overlays; len(o.prepared)+len(o.started)+len(o.retained)+len(o.handedOn) > 0 {
				t.Errorf("the target has changed overlays: %+v", o)
			}
			if out := target.end(); out.End != pb.State_REQUESTED_SHUTDOWN || out.NeverStarted {
				t.Errorf("the target: %+v", out)
			}
			if diff := cmp.Diff([]string{"root"}, target.overlays.clean); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The connection broke before the source could say that it is gone: the handler says it.
func TestFinishMigration(t *testing.T) {
	t.Parallel()
	b := newTargetBench(t)
	finish := func() codes.Code {
		_, err := b.FinishMigration(t.Context(), &pb.FinishMigrationRequest{Uid: "m"})
		return status.Code(err)
	}
	b.guest.is(domain.StatePaused, domain.ReasonMigrating)
	if code := finish(); code != codes.FailedPrecondition || b.guest.count("Resume") != 0 {
		t.Errorf("before the guest is there: %v", code)
	}
	b.arrived()
	if _, err := b.FinishMigration(t.Context(),
		&pb.FinishMigrationRequest{Uid: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("another migration: %v", err)
	}
	for range 2 {
		if code := finish(); code != codes.OK || b.guest.count("Resume") != 1 {
			t.Errorf("%v, %v", code, b.guest.calls)
		}
	}
	if _, err := b.CancelMigration(t.Context(), &pb.CancelMigrationRequest{Uid: "m"}); err != nil {
		t.Error(err)
	}
	if s, _ := b.State(); s.Phase != pb.State_RUNNING {
		t.Errorf("a guest that has moved is cancelled: %v", s)
	}
	b.end()
}

func TestMigration_failureLeavesTheGuestRunning(t *testing.T) {
	t.Parallel()
	for name, pausedBy := range map[string]domain.Reason{
		"while it runs": "", "at the end": domain.ReasonMigrating, "while the target has the disks": domain.ReasonNotResumed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := newBench(t), newTargetBench(t)
			source.up()
			if err := source.migrate(target.address); err != nil {
				t.Fatal(err)
			}
			if pausedBy != "" {
				source.guest.is(domain.StatePaused, pausedBy)
			}
			source.guest.moved <- errors.New("the connection was reset")
			s := source.awaitMigration(pb.Migration_FAILED)
			if s.Phase == pb.State_ENDED || !strings.Contains(s.Migration.Message, "reset") {
				t.Errorf("the source: %v", s)
			}
			source.await("the guest goes on",
				func(*pb.State) bool { return (source.guest.count("Resume") > 0) == (pausedBy != "") })
			if s, _ := target.State(); s.Phase != pb.State_IDLE || target.guest.count("Resume") != 0 {
				t.Errorf("the target: %v", s)
			}
			if err := source.migrate(target.address); err != nil || source.guest.count("Migrate") != 1 {
				t.Errorf("the same migration again: %v, %v", err, source.guest.calls)
			}
			if err := second(source.BeginBackup(t.Context(), request("b"))); err != nil {
				t.Errorf("a backup afterwards: %v", err)
			}
			source.end()
			target.end()
		})
	}
}

func TestMigration_resumesTheGuestWhenThatWorks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.up()
	if err := b.migrate("127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	b.guest.mu.Lock()
	b.guest.resumeErr = errors.New("the disk is locked")
	b.guest.mu.Unlock()
	b.guest.is(domain.StatePaused, domain.ReasonMigrating)
	b.guest.moved <- errors.New("the connection was reset")
	b.awaitMigration(pb.Migration_FAILED) // so that the target ends, which may have the lock
	b.guest.mu.Lock()
	b.guest.resumeErr = nil
	b.guest.mu.Unlock()
	b.await("the guest goes on", func(s *pb.State) bool {
		b.guest.mu.Lock()
		defer b.guest.mu.Unlock()
		return s.Phase == pb.State_RUNNING && b.guest.info.State == domain.StateRunning
	})
	b.end()
}

func TestMigration_excludesWhatElseNeedsTheGuest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if code := status.Code(b.migrate("127.0.0.1:1")); code != codes.FailedPrecondition {
		t.Errorf("before the start: %v", code)
	}
	b.up()
	b.guest.agent(true)
	b.await("the agent", func(s *pb.State) bool { return s.AgentConnected })
	if _, err := b.freeze(); err != nil {
		t.Fatal(err)
	}
	if code := status.Code(b.migrate("127.0.0.1:1")); code != codes.FailedPrecondition {
		t.Errorf("a frozen guest: %v", code)
	}
	if _, err := b.thaw(); err != nil {
		t.Fatal(err)
	}
	if err := second(b.Migrate(t.Context(), &pb.MigrateRequest{Uid: "m"})); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no token: %v", err)
	}
	if err := b.migrate("127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{ // they are asked again
		"a backup":     second(b.BeginBackup(t.Context(), request("b"))),
		"a freeze":     second(b.freeze()),
		"redefinition": second(b.RedefineCheckpoints(t.Context(), &pb.RedefineCheckpointsRequest{})),
		"deletion":     second(b.DeleteCheckpoints(t.Context(), &pb.DeleteCheckpointsRequest{})),
	} {
		if status.Code(err) != codes.Aborted {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"another migration": second(b.Migrate(t.Context(), &pb.MigrateRequest{Uid: "n", Token: migrationToken})),
		"arrival": second(b.PrepareMigration(t.Context(), &pb.PrepareMigrationRequest{
			Uid:   "m",
			Token: migrationToken, Start: startRequest(t),
		})),
	} {
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A stop cancels it first.
	b.Stop(time.Minute)
	s := b.await("the guest has shut down", func(s *pb.State) bool { return s.Phase == pb.State_ENDED })
	if s.End != pb.State_REQUESTED_SHUTDOWN || s.Migration.Phase != pb.Migration_FAILED ||
		s.Migration.Message != "the guest is being stopped" {
		t.Errorf("%v", s)
	}
	b.end()
}

func TestMigration_isCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.up()
	if err := b.migrate("127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"other", "m", "m"} {
		if _, err := b.CancelMigration(t.Context(), &pb.CancelMigrationRequest{
			Uid:    uid,
			Reason: "deleted: " + uid,
		}); err != nil {
			t.Error(err)
		}
	}
	if s := b.awaitMigration(pb.Migration_FAILED); s.Migration.Message != "deleted: m" || s.Phase != pb.State_RUNNING {
		t.Errorf("%v", s)
	}
	b.end()
}

// The source's QEMU is gone, and libvirtd dies: the guest has not crashed.
func TestMigration_libvirtDiesAfterTheGuestHasLeft(t *testing.T) {
	t.Parallel()
	source, target := newBench(t), newTargetBench(t)
	source.up()
	target.guest.resumeErr = errors.New("the disk is locked")
	if err := source.migrate(target.address); err != nil {
		t.Fatal(err)
	}
	target.arrived()
	source.leave(nil)
	target.await("the guest is taken over", func(s *pb.State) bool { return s.Phase == pb.State_STARTING })
	close(source.gone)
	target.guest.mu.Lock()
	target.guest.resumeErr = nil
	target.guest.mu.Unlock()
	target.await("the guest goes on", func(s *pb.State) bool { return s.Phase == pb.State_RUNNING })
	if out := source.end(); out.End != pb.State_MIGRATED {
		t.Errorf("%+v", out)
	}
	target.end()
}

func TestPrepareMigration_changesNothing(t *testing.T) {
	t.Parallel()
	b := newTargetBench(t)
	if err := second(b.Start(t.Context(), startRequest(t))); status.Code(err) != codes.FailedPrecondition ||
		b.guest.count("Start") != 0 {
		t.Errorf("it starts a guest: %v", err)
	}
	for _, uid := range []string{"other", "m"} {
		if _, err := b.CancelMigration(t.Context(), &pb.CancelMigrationRequest{Uid: uid, Reason: "deleted"}); err != nil {
			t.Error(err)
		}
	}
	out := <-b.outcome // without Exit
	if out.ExitCode != 0 || !out.NeverStarted || !strings.Contains(out.Message, "deleted") || len(b.overlays.clean) > 0 {
		t.Errorf("%+v", out)
	}
	if err := (relay.Identity{UID: "m", Token: migrationToken}).HandOver(t.Context(), b.address); err == nil {
		t.Error("it still listens")
	}
}

func TestPrepareMigration_refuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(t *testing.T, b *bench, req *pb.PrepareMigrationRequest)
		want   codes.Code
	}{
		"no token": {
			func(_ *testing.T, _ *bench, req *pb.PrepareMigrationRequest) { req.Token = nil },
			codes.InvalidArgument,
		},
		"no start": {
			func(_ *testing.T, _ *bench, req *pb.PrepareMigrationRequest) { req.Start = nil },
			codes.InvalidArgument,
		},
		"no source": {
			func(_ *testing.T, _ *bench, req *pb.PrepareMigrationRequest) { req.Start.Disks = nil },
			codes.FailedPrecondition,
		},
		"no disk": {func(t *testing.T, b *bench, _ *pb.PrepareMigrationRequest) {
			t.Helper()
			if err := os.Remove(b.cfg.Paths.DiskFile("root")); err != nil {
				t.Fatal(err)
			}
		}, codes.FailedPrecondition},
		"no overlay": {func(_ *testing.T, b *bench, _ *pb.PrepareMigrationRequest) {
			b.overlays.overlayDir = filepath.Join(b.overlays.overlayDir, "none")
		}, codes.FailedPrecondition},
		"a guest": {func(_ *testing.T, b *bench, _ *pb.PrepareMigrationRequest) { b.up() }, codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			req := &pb.PrepareMigrationRequest{Uid: "m", Token: migrationToken, Start: startRequest(t)}
			c.change(t, b, req)
			if _, err := b.PrepareMigration(t.Context(), req); status.Code(err) != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
			if _, err := os.Stat(b.cfg.Paths.DiskFile("root")); name == "no disk" && !os.IsNotExist(err) {
				t.Errorf("it has made a disk: %v", err)
			}
			b.end()
		})
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	begun := time.Unix(1000, 0)
	p := newPace(begun, &pb.MigrateRequest{ProgressTimeoutSeconds: 10, CompletionTimeoutSeconds: 60})
	active := func(remaining uint64) domain.MigrationJob {
		return domain.MigrationJob{Active: true, RemainingBytes: remaining}
	}
	for _, step := range []struct {
		after int
		job   domain.MigrationJob
		late  string
	}{
		{9, domain.MigrationJob{}, ""},
		{9, active(100), ""},
		{18, active(100), ""},
		{18, active(99), ""},
		{27, active(200), ""},
		{28, active(99), "has not become less"},
		{29, active(98), ""},
		{38, active(97), ""},
		{47, active(96), ""},
		{56, active(95), ""},
		{60, active(94), "has not completed in 1m0s"},
	} {
		late := p.whyLate(begun.Add(time.Duration(step.after)*time.Second), step.job)
		if (late == "") != (step.late == "") || !strings.Contains(late, step.late) {
			t.Errorf("after %d s, with %d bytes left: %q, want %q", step.after, step.job.RemainingBytes, late, step.late)
		}
	}
	unlimited := newPace(begun, &pb.MigrateRequest{})
	if late := unlimited.whyLate(begun.Add(1000*time.Hour), active(1)); late != "" {
		t.Error(late)
	}
}
