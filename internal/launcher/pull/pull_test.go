package pull

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/nbdvolume"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	"github.com/varvebackup/varve/internal/launcher/backupjob/backupjobtest"
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// served is a volume in memory that says when it was closed.
type served struct {
	*exporttest.Volume

	closed bool
	// lost has a value once the export is out of reach.
	lost atomic.Value
	// closing, if set, is called by Close.
	closing func()
}

func (s *served) Lost() error {
	err, _ := s.lost.Load().(error)
	return err
}

func (s *served) Close() error {
	if s.closing != nil {
		s.closing()
	}
	s.closed = true
	return nil
}

// fakeImages writes plain files instead of qcow2 files.
type fakeImages struct{ fail error }

func (f *fakeImages) CreateTarget(_ context.Context, path string, _ int64) error {
	if f.fail != nil {
		return f.fail
	}
	return os.WriteFile(path, []byte("scratch"), 0o600)
}

// bench is a job with a fake environment.
type bench struct {
	*testing.T

	guest   *backupjobtest.Guest
	images  *fakeImages
	dir     string
	cfg     Config
	freezer *freeze.Freezer
	endLife context.CancelFunc
	volumes map[string]*served
	// openFails is the error of OpenVolume, and connections how many the volumes have.
	openFails   error
	connections int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, guest: backupjobtest.NewGuest(), images: &fakeImages{}, dir: t.TempDir(), volumes: map[string]*served{}}
	b.guest.Dirty = map[string]uint64{"root": 64 << 10, "data": 128 << 10}
	mountInfo := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(mountInfo, fmt.Appendf(nil, "1 2 3:4 / %s rw - ext4 /dev/x rw\n", b.dir), 0o600); err != nil {
		t.Fatal(err)
	}
	life, endLife := context.WithCancel(context.Background())
	b.endLife = endLife
	t.Cleanup(endLife)
	log := slog.New(slog.DiscardHandler)
	b.freezer = freeze.New(life, b.guest, clock.RealClock{}, log, func() {})
	disks := map[string]backupjob.Disk{}
	for _, name := range []string{"root", "data"} {
		raw := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(raw, bytes.Repeat([]byte{1}, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		disks[name] = backupjob.Disk{RawPath: raw, VirtualBytes: 1 << 20, Tracked: true}
	}
	b.cfg = Config{
		Config: backupjob.Config{
			Guest: b.guest, Freezer: b.freezer, Clock: clock.RealClock{}, Log: log, Disks: disks,
			AgentConnected: func() bool { return true },
			Changed:        func() {},
		},
		Images:     b.images,
		OpenTarget: func(string) (*target.Volume, error) { return target.Open(b.dir, mountInfo) },
		Socket:     filepath.Join(t.TempDir(), "nbd", "backup.sock"),
		OpenVolume: b.openVolume,
	}
	return b
}

func (b *bench) openVolume(_ context.Context, socket string, o nbdvolume.Options) (Volume, error) {
	if b.openFails != nil {
		return nil, b.openFails
	}
	if socket != b.cfg.Socket {
		b.Errorf("opened at %s", socket)
	}
	v := &served{Volume: exporttest.NewVolume(o.Name, 1<<20, o.Bitmap != "", 1)}
	v.Description.PointInTime = o.PointInTime
	b.volumes[o.Name] = v
	b.connections += o.Connections
	return v, nil
}

func request() *pb.BeginBackupRequest {
	return &pb.BeginBackupRequest{
		Uid: "u2", Name: "b2", Namespace: "ns", Vm: "vm", Tracker: "t", Checkpoint: "cp2", Pull: true,
		BaseCheckpoint: "cp1",
		Volumes:        []*pb.BackupVolume{{Volume: "root", FullReason: "NoCheckpoint"}, {Volume: "data", Incremental: true}},
		TargetVolume:   "backup-1", Directory: "vm/b2",
	}
}

func (b *bench) job() *Job {
	b.Helper()
	j, err := New(context.Background(), b.cfg, request())
	if err != nil {
		b.Fatal(err)
	}
	return j
}

// run runs the job to its end, and checks that it leaves nothing.
func (b *bench) run(j *Job) *pb.Backup {
	b.Helper()
	j.Run()
	b.endLife()
	b.freezer.Wait()
	if left, err := os.ReadDir(b.dir); err != nil || len(left) > 0 {
		b.Errorf("left on the scratch volume: %v, %v", left, err)
	}
	if _, err := os.Stat(b.cfg.Socket); !errors.Is(err, os.ErrNotExist) {
		b.Errorf("the socket is left: %v", err)
	}
	for name, v := range b.volumes {
		if !v.closed {
			b.Errorf("the connections of volume %s are left", name)
		}
	}
	if b.guest.JobInfo.Active || b.guest.Frozen {
		b.Errorf("job %+v, frozen %v", b.guest.JobInfo, b.guest.Frozen)
	}
	if _, err := j.Open(b.Context(), "root"); !errors.Is(err, errclass.Transient) {
		b.Errorf("a volume after the end: %v", err)
	}
	return j.Snapshot()
}

// whenServing calls do once, when the job serves.
func (b *bench) whenServing(j **Job, do func(*Job)) {
	var once bool
	b.cfg.Changed = func() {
		if (*j).Snapshot().Phase == pb.Backup_SERVING && !once {
			once = true
			go do(*j)
		}
	}
}

func TestPull_servesUntilItIsFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var j *Job
		b.whenServing(&j, func(j *Job) {
			if infos := j.Infos(); len(infos) != 2 || infos[0].Name != "root" || infos[0].Incremental || !infos[1].Incremental || infos[1].PointInTime != "u2/data" {
				t.Errorf("%+v", infos)
			}
			if entries, err := os.ReadDir(b.dir + "/vm/b2.partial"); err != nil || len(entries) != 2 {
				t.Errorf("scratch %v: %v", entries, err)
			}
			v, err := j.Open(t.Context(), "root")
			if err != nil {
				t.Error(err)
				return
			}
			err = v.Read(t.Context(), extent.Extent{Length: 1 << 20}, export.Everything, func(export.Chunk) error { return nil })
			if err != nil {
				t.Error(err)
			}
			if _, err := j.Open(t.Context(), "other"); !errors.Is(err, errclass.NotFound) {
				t.Errorf("another volume: %v", err)
			}
			time.Sleep(3 * time.Hour)
			b.guest.Set(func() { b.guest.JobInfo.TempBytes = 7 << 20 })
			time.Sleep(time.Minute)
			if s := j.Snapshot(); s.ScratchUsedBytes != 7<<20 || s.ScratchFreeBytes == 0 || s.ProcessedBytes == 0 || s.TotalBytes < 1<<20 {
				t.Errorf("%v", s)
			}
			for range 2 {
				if err := j.Finish(); err != nil {
					t.Error(err)
				}
			}
		})
		j = b.job()
		if err := j.Finish(); !errors.Is(err, ErrNotServing) {
			t.Errorf("finished before it begins: %v", err)
		}
		got := b.run(j)
		if got.Phase != pb.Backup_DONE || got.Quiesce != pb.Backup_FROZEN || b.guest.Count("DeleteCheckpoint cp2") > 0 {
			t.Errorf("%v after %v", got, b.guest.Calls)
		}
		begun := b.guest.Begun
		if begun.Socket != b.cfg.Socket || len(begun.Disks) != 2 || begun.Disks[0].Incremental != "" || begun.Disks[1].Incremental != "cp1" {
			t.Errorf("%+v", begun)
		}
		if err := j.Finish(); err != nil {
			t.Errorf("finished again: %v", err)
		}
	})
}

// Each failure has its class, and leaves no job, no checkpoint, no files, and a guest that is neither frozen nor paused.
func TestFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		arrange func(b *bench)
		serving func(b *bench, j *Job)
		want    pb.Backup_Failure
		says    string
		resumed bool
	}{
		"no target": {arrange: func(b *bench) {
			b.cfg.OpenTarget = func(string) (*target.Volume, error) { return nil, target.ErrInvalid }
		}, want: pb.Backup_TARGET_INVALID},
		"base lost": {arrange: func(b *bench) { delete(b.guest.Dirty, "data") }, want: pb.Backup_BASE_LOST, says: "data"},
		"no scratch file": {
			arrange: func(b *bench) { b.images.fail = fmt.Errorf("x: %w", errclass.Exhausted) },
			want:    pb.Backup_SCRATCH_FULL, says: "use a larger claim",
		},
		"no export": {arrange: func(b *bench) { b.openFails = errors.New("nobody listens") }, want: pb.Backup_HYPERVISOR_ERROR, says: "nobody listens"},
		"aborted":   {serving: func(_ *bench, j *Job) { j.Fail(backupjob.Aborted()) }, want: pb.Backup_ABORTED},
		"aborted and finished": {serving: func(_ *bench, j *Job) {
			j.Fail(backupjob.Aborted())
			_ = j.Finish()
		}, want: pb.Backup_ABORTED},
		"guest shut down": {serving: func(b *bench, j *Job) {
			b.guest.Set(func() { b.guest.JobInfo = domain.JobInfo{Known: true, Err: errors.New("failed")} })
			j.GuestEnded(backupjob.GuestShutDown)
		}, want: pb.Backup_GUEST_SHUTDOWN},
		"somebody ends the job": {serving: func(b *bench, _ *Job) {
			b.guest.Set(func() { b.guest.JobInfo = domain.JobInfo{Known: true} })
		}, want: pb.Backup_HYPERVISOR_ERROR, says: "somebody else ended it"},
		"libvirt says nothing": {serving: func(b *bench, _ *Job) {
			b.guest.Set(func() { b.guest.Fail["BackupJob"] = errors.New("silence") })
			time.AfterFunc(time.Minute, func() { b.guest.Set(func() { delete(b.guest.Fail, "BackupJob") }) })
		}, want: pb.Backup_HYPERVISOR_ERROR, says: "silence"},
		"the guest is paused": {serving: func(b *bench, j *Job) {
			b.guest.Set(func() { b.guest.State = domain.Info{State: domain.StatePaused, Reason: domain.ReasonIOError} })
			j.Deliver(domain.Event{Kind: domain.EventIOError, Paused: true, Volume: "root", Message: "enospc"})
		}, want: pb.Backup_HYPERVISOR_ERROR, says: "enospc", resumed: true},
		"the export is lost": {serving: func(b *bench, _ *Job) {
			b.volumes["data"].lost.Store(errors.New("nobody listens any more"))
		}, want: pb.Backup_HYPERVISOR_ERROR, says: "nobody listens any more"},
		"the end is refused": {serving: func(b *bench, j *Job) {
			b.guest.Set(func() {
				b.guest.On["AbortBackup"] = func() { b.guest.Set(func() { b.guest.JobInfo = domain.JobInfo{} }) }
			})
			b.guest.Set(func() { b.guest.Fail["AbortBackup"] = domain.ErrBusy })
			_ = j.Finish()
		}, want: pb.Backup_HYPERVISOR_ERROR, says: "does not know how"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				var j *Job
				if c.serving != nil {
					b.whenServing(&j, func(j *Job) { c.serving(b, j) })
				}
				if c.arrange != nil {
					c.arrange(b)
				}
				j = b.job()
				got := b.run(j)
				if got.Phase != pb.Backup_FAILED || got.Failure != c.want || !strings.Contains(got.Message, c.says) || got.Message == "" {
					t.Errorf("%v", got)
				}
				if begun, deleted := b.guest.Count("BeginBackup"), b.guest.Count("DeleteCheckpoint cp2"); c.want != pb.Backup_GUEST_SHUTDOWN && begun != deleted {
					t.Errorf("the checkpoint was deleted %d times", deleted)
				}
				if c.resumed != (b.guest.Count("Resume") > 0) {
					t.Error("the guest was resumed, or was not")
				}
				if err := j.Finish(); !errors.Is(err, ErrNotServing) {
					t.Errorf("finished after a failure: %v", err)
				}
			})
		})
	}
}

func TestCheckSpace_namesBothNumbers(t *testing.T) {
	t.Parallel()
	if err := checkSpace(2, 1<<30); err != nil {
		t.Error(err)
	}
	err := checkSpace(2, 3<<20)
	var f *backupjob.Failure
	if !errors.As(err, &f) || f.Kind != pb.Backup_INSUFFICIENT_SPACE || !strings.Contains(f.Message, "3 MiB") || !strings.Contains(f.Message, "24 MiB") {
		t.Errorf("%v", err)
	}
}

// The backup ends before the scratch volume is full, and when it gives no answer.
func TestWatch_endsTheBackupInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &watch{clock: clock.RealClock{}, at: time.Now(), wrote: time.Now(), free: reserveBytes}
		if err := w.check(1); err != nil {
			t.Error(err)
		}
		w.free--
		var f *backupjob.Failure
		if err := w.check(5 << 20); !errors.As(err, &f) || f.Kind != pb.Backup_SCRATCH_FULL || !strings.Contains(f.Message, "5 MiB") {
			t.Errorf("%v", err)
		}
		w.err = errors.New("stale file handle") // says nothing about the space
		if err := w.check(1); err != nil {
			t.Error(err)
		}
		time.Sleep(stalledAfter + time.Second)
		if err := w.check(1); !errors.As(err, &f) || f.Kind != pb.Backup_TARGET_STALLED {
			t.Errorf("%v", err)
		}
	})
}

// An I/O error pauses the guest just before the backup ends well, and its event is late.
func TestFinish_leavesNoPausedGuest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var j *Job
		b.whenServing(&j, func(j *Job) {
			b.guest.Set(func() { b.guest.State = domain.Info{State: domain.StatePaused, Reason: domain.ReasonIOError} })
			_ = j.Finish()
		})
		j = b.job()
		if got := b.run(j); got.Phase != pb.Backup_DONE || b.guest.Count("Resume") != 1 {
			t.Errorf("%v after %v", got, b.guest.Calls)
		}
	})
}

// A reader that does not end keeps neither a success nor a failure from ending libvirt's job.
func TestReaders_holdUpNobody(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(j *Job){
		"failed":   func(j *Job) { j.Fail(backupjob.Aborted()) },
		"finished": func(j *Job) { _ = j.Finish() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				ends := make(chan struct{})
				var ended time.Time
				var aborted time.Duration
				b.guest.On["AbortBackup"] = func() { aborted = time.Since(ended) }
				var j *Job
				b.whenServing(&j, func(j *Job) {
					time.AfterFunc(time.Hour, func() { close(ends) })
					b.volumes["root"].closing = func() { <-ends }
					ended = time.Now()
					end(j)
				})
				j = b.job()
				j.Run()
				if b.guest.Count("AbortBackup") != 1 || aborted > 2*closeTimeout || j.Running() {
					t.Errorf("aborted %s after the end: %v", aborted, b.guest.Calls)
				}
				if took := time.Since(ended); took > time.Minute {
					t.Errorf("the backup ended %s later", took)
				}
				<-ends
				b.endLife()
				b.freezer.Wait()
			})
		})
	}
}

// QEMU's server takes 100 connections. A backup has up to 64 disks, and each of them at least one.
func TestConnections_areBelowTheServersLimit(t *testing.T) {
	t.Parallel()
	for disks, want := range map[int]int{2: 4, 33: 33, 64: 64} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			req := request()
			req.Volumes = nil
			for i := range disks {
				name := fmt.Sprintf("disk%d", i)
				b.cfg.Disks[name] = b.cfg.Disks["root"]
				req.Volumes = append(req.Volumes, &pb.BackupVolume{Volume: name, FullReason: "NoCheckpoint"})
			}
			var j *Job
			b.whenServing(&j, func(j *Job) { _ = j.Finish() })
			var err error
			if j, err = New(context.Background(), b.cfg, req); err != nil {
				t.Fatal(err)
			}
			if got := b.run(j); got.Phase != pb.Backup_DONE || b.connections != want {
				t.Errorf("%d connections for %d disks, want %d: %v", b.connections, disks, want, got.Phase)
			}
		})
	}
}
