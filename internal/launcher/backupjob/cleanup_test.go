package backupjob

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob/backupjobtest"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// fakeMode moves nothing: its backup runs until it fails.
type fakeMode struct {
	guest *backupjobtest.Guest
	// discard is called when files are to be removed, and inspect when the failure is judged.
	discard, inspect func()
}

func (m *fakeMode) Prepare(ctx context.Context) (domain.BeginFunc, error) {
	return m.guest.PrepareBackup(ctx, domain.Backup{})
}

func (m *fakeMode) Move(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (m *fakeMode) Inspect(bool) func(error) *Failure {
	m.inspect()
	return func(error) *Failure { return nil }
}

func (m *fakeMode) Discard() error {
	m.discard()
	return nil
}

// newFakeJob returns a backup of a fake guest.
func newFakeJob(t *testing.T) (*Job, *fakeMode) {
	t.Helper()
	mode := &fakeMode{guest: backupjobtest.NewGuest(), discard: func() {}, inspect: func() {}}
	j, err := New(context.Background(), Config{
		Guest: mode.guest, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		Disks:          map[string]Disk{"root": {VirtualBytes: 1 << 20, Tracked: true}},
		AgentConnected: func() bool { return false },
		Changed:        func() {},
	}, &pb.BeginBackupRequest{
		Uid: "u", Vm: "vm", Checkpoint: "cp", TargetVolume: "backup-1", Directory: "vm/b",
		Volumes: []*pb.BackupVolume{{Volume: "root"}},
	}, func(*Job) Mode { return mode })
	if err != nil {
		t.Fatal(err)
	}
	return j, mode
}

// refuse has the guest refuse a call for a while; 0 is for ever.
func refuse(guest *backupjobtest.Guest, call string, d time.Duration) {
	guest.Set(func() { guest.Fail[call] = domain.ErrBusy })
	if d > 0 {
		time.AfterFunc(d, func() { guest.Set(func() { delete(guest.Fail, call) }) })
	}
}

var pausedByIOError = domain.Info{State: domain.StatePaused, Reason: domain.ReasonIOError}

// libvirt refuses to abort for minutes. The backup fails in time, and no file is removed under QEMU.
func TestCleanUp_removesNoFileUnderARunningJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, mode := newFakeJob(t)
		const refused = 5 * time.Minute
		discarded := false
		mode.discard = func() {
			discarded = true
			if mode.guest.JobInfo.Active {
				t.Error("files are removed while QEMU writes to them")
			}
			if mode.guest.Count("DeleteCheckpoint cp") != 1 {
				t.Error("the checkpoint is left")
			}
		}
		go j.Run()
		time.Sleep(time.Second)
		refuse(mode.guest, "AbortBackup", refused)
		mode.guest.Set(func() { mode.guest.State = pausedByIOError })
		j.Fail(Aborted())
		time.Sleep(2 * AbortTimeout)
		got := j.Snapshot()
		if got.Phase != pb.Backup_FAILED || got.Failure != pb.Backup_ABORTED || !strings.Contains(got.Message, "keeps trying") {
			t.Errorf("the user is not told: %v", got)
		}
		if discarded || !j.Running() {
			t.Error("the backup counts as undone while its job runs")
		}
		if mode.guest.Count("Resume") == 0 {
			t.Error("the guest stays paused while libvirt refuses to abort")
		}
		time.Sleep(refused - 2*AbortTimeout)
		time.Sleep(2 * time.Second)
		if j.Running() || !discarded || mode.guest.JobInfo.Active {
			t.Errorf("not undone after libvirt has ended the job: %v", mode.guest.Calls)
		}
		if got := j.Snapshot(); got.Failure != pb.Backup_ABORTED || strings.Contains(got.Message, "keeps trying") {
			t.Errorf("%v", got)
		}
	})
}

func TestCleanUp_endsWithTheGuest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, mode := newFakeJob(t)
		go j.Run()
		time.Sleep(time.Second)
		refuse(mode.guest, "AbortBackup", 0)
		j.Fail(Stopped())
		time.Sleep(10 * time.Minute)
		if !j.Running() {
			t.Error("the backup counts as undone while its job runs")
		}
		j.GuestEnded(GuestCrashed)
		time.Sleep(time.Second)
		if got := j.Snapshot(); j.Running() || got.Failure != pb.Backup_STOPPED {
			t.Errorf("running %v, %v", j.Running(), got)
		}
	})
}

// A resume that libvirt refuses at first is tried again, after a failure as after a success.
func TestCleanUp_leavesNoPausedGuest(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(j *Job) error{
		"failure": func(*Job) error { return Aborted() },
		"success": func(j *Job) error { return j.FinishJob(j.ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				j, mode := newFakeJob(t)
				mode.guest.JobInfo = domain.JobInfo{Active: true, Known: true}
				mode.guest.On["AbortBackup"] = func() {
					mode.guest.Set(func() { mode.guest.Begun.Socket, mode.guest.State = "pull", pausedByIOError })
				}
				resumed := false
				mode.guest.On["Resume"] = func() {
					mode.guest.Set(func() { resumed = mode.guest.Fail["Resume"] == nil })
				}
				refuse(mode.guest, "Resume", time.Minute)
				j.progress.begun = true
				if err := end(j); err != nil {
					j.cleanUp(err)
				}
				if !resumed {
					t.Errorf("the guest stays paused: %v", mode.guest.Calls)
				}
			})
		})
	}
}

// A job that an earlier backup left may have paused the guest.
func TestStray_freesTheGuest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, mode := newFakeJob(t)
		mode.guest.JobInfo, mode.guest.State = domain.JobInfo{Active: true, Known: true}, pausedByIOError
		if err := j.endStray(t.Context()); err != nil {
			t.Fatal(err)
		}
		if mode.guest.Count("AbortBackup") != 1 || mode.guest.Count("Resume") != 1 {
			t.Errorf("%v", mode.guest.Calls)
		}
		mode.guest.Set(func() { mode.guest.JobInfo.Active, mode.guest.Fail["Resume"] = true, errors.New("no") })
		if err := j.endStray(t.Context()); err == nil {
			t.Error("a backup begins although the guest stays paused")
		}
	})
}

// A panic in the cleanup ends neither the launcher nor the cleanup.
func TestCleanUp_survivesPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j, mode := newFakeJob(t)
		mode.inspect = func() { panic("a mistake of Inspect") }
		mode.discard = func() { panic("a mistake of Discard") }
		mode.guest.On["AbortBackup"] = func() {
			if mode.guest.Count("AbortBackup") == 1 {
				panic("a mistake of libvirt's binding")
			}
		}
		go j.Run()
		time.Sleep(time.Second)
		j.Fail(Aborted())
		<-j.Done()
		if got := j.Snapshot(); got.Failure != pb.Backup_ABORTED || !strings.Contains(got.Message, "a mistake of Discard") || mode.guest.JobInfo.Active {
			t.Errorf("%v after %v", got, mode.guest.Calls)
		}
	})
}
