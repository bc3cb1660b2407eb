package push

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
	"github.com/varvebackup/varve/internal/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests run in bubbles of testing/synctest: timers fire at once, and a leftover goroutine fails the test.

func TestJob_fullBackup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		j := b.job(request())
		b.complete(j)
		got := b.run(j)
		if got.Phase != pb.Backup_DONE || got.Quiesce != pb.Backup_FROZEN || got.CopyMillis != 1000 || got.PointInTime == nil {
			t.Fatalf("%v", got)
		}
		want := []string{"BackupJob", "PrepareBackup", "FSFrozen", "Freeze", "BeginBackup", "Thaw"}
		if diff := cmp.Diff(want, b.guest.Calls[:len(want)]); diff != "" {
			t.Errorf("calls: %s", diff)
		}
		for i, v := range got.Volumes {
			if len(v.Sha256) != 64 || v.MovedBytes == 0 || v.File != "vm/b2/"+request().Volumes[i].Volume+".qcow2" {
				t.Errorf("%v", v)
			}
		}
		data, err := os.ReadFile(filepath.Join(b.dir, "vm/b2/backup.json"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := manifest.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if m.Parent != nil || !m.Quiesced || m.Volumes[0].FullReason != "NoCheckpoint" || m.Volumes[0].SHA256 != got.Volumes[0].Sha256 {
			t.Errorf("manifest %+v", m)
		}
		if b.guest.Count("DeleteCheckpoint cp2") > 0 || b.guest.Frozen {
			t.Error("the checkpoint is gone or the guest frozen")
		}
	})
}

// Hashing a disk may take hours, while a copy without progress is aborted.
func TestProgress_continuesWhileFilesAreHashed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		j := b.job(request())
		var seen []*pb.Backup
		var mu sync.Mutex
		b.changed = func() {
			mu.Lock()
			defer mu.Unlock()
			if s := j.Snapshot(); s.Phase >= pb.Backup_COPYING {
				seen = append(seen, s)
			}
		}
		b.complete(j)
		b.run(j)
		steps, last := 0, uint64(0)
		for _, s := range seen {
			if s.ProcessedBytes < last || s.ProcessedBytes > s.TotalBytes {
				t.Errorf("%d of %d after %d", s.ProcessedBytes, s.TotalBytes, last)
			}
			if s.Phase == pb.Backup_FINISHING && s.ProcessedBytes > last {
				steps++
			}
			last = s.ProcessedBytes
		}
		end := seen[len(seen)-1]
		if steps < len(request().Volumes) || end.ProcessedBytes != end.TotalBytes {
			t.Errorf("%d steps while files were hashed, at the end %d of %d", steps, end.ProcessedBytes, end.TotalBytes)
		}
	})
}

// mixedRequest returns a request with an incremental disk and one whose base is lost.
func mixedRequest() *pb.BeginBackupRequest {
	req := incrementalRequest()
	req.Volumes[1].Incremental, req.Volumes[1].FullReason = false, "BitmapLost"
	return req
}

func TestJob_diskWithoutABaseIsFullAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.makeParent("root", "data")
		j := b.job(mixedRequest())
		b.complete(j)
		if got := b.run(j); got.Phase != pb.Backup_DONE {
			t.Fatalf("%v", got)
		}
		if d := b.guest.Begun.Disks; len(d) != 2 || d[0].Incremental != "cp1" || d[1].Incremental != "" {
			t.Errorf("libvirt was asked for %+v", d)
		}
		if diff := cmp.Diff(map[string]string{"root.qcow2": "../b1/root.qcow2"}, b.images.backing); diff != "" {
			t.Error(diff)
		}
		data, err := os.ReadFile(filepath.Join(b.dir, "vm/b2/backup.json"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := manifest.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if v := m.Volumes; v[0].Type != manifest.Incremental || v[1].Type != manifest.Full || v[1].FullReason != "BitmapLost" {
			t.Errorf("the manifest has %+v", v)
		}
	})
}

func TestJob_namesOnlyTheDiskThatLostItsBase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.makeParent("root", "data")
		delete(b.guest.Dirty, "data")
		got := b.run(b.job(incrementalRequest()))
		if got.Failure != pb.Backup_BASE_LOST || got.Volumes[0].BaseLost || !got.Volumes[1].BaseLost {
			t.Errorf("seen early: %v", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.makeParent("root", "data")
		b.guest.Fail["BeginBackup"] = fmt.Errorf("x: %w", domain.ErrCheckpointLost)
		b.guest.On["BeginBackup"] = func() { b.guest.Set(func() { delete(b.guest.Dirty, "root") }) }
		got := b.run(b.job(incrementalRequest()))
		if got.Failure != pb.Backup_BASE_LOST || !got.Volumes[0].BaseLost || got.Volumes[1].BaseLost {
			t.Errorf("at the beginning: %v", got)
		}
	})
}

func TestJob_withoutATrackerMakesNoCheckpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		req := request()
		req.Tracker, req.Checkpoint = "", ""
		j := b.job(req)
		b.complete(j)
		if got := b.run(j); got.Phase != pb.Backup_DONE || b.guest.Begun.Checkpoint != "" || len(b.guest.Begun.Disks) != 2 {
			t.Errorf("%v, began %+v", got, b.guest.Begun)
		}
	})
}

func TestAbort_whileFilesAreHashed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		j := b.job(request())
		var finishing atomic.Int32
		b.changed = func() {
			if j.Snapshot().Phase == pb.Backup_FINISHING && finishing.Add(1) == 2 { // the first block is hashed
				j.Fail(backupjob.Aborted())
			}
		}
		b.complete(j)
		got := b.run(j)
		if got.Failure != pb.Backup_ABORTED || b.guest.Count("DeleteCheckpoint cp2") == 0 {
			t.Errorf("%v", got)
		}
		if left, err := os.ReadDir(b.dir + "/vm"); err == nil && len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// Each failure has its class, and leaves no job, no checkpoint, no files, and a guest that is neither frozen nor paused.
func TestFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		req     *pb.BeginBackupRequest
		arrange func(b *bench, j *job)
		want    pb.Backup_Failure
		says    string
		begun   bool // libvirt was asked to begin
	}{
		"no mount": {arrange: func(b *bench, j *job) {
			j.cfg.OpenTarget = func(string) (*target.Volume, error) { return target.Open(b.dir, os.DevNull) }
		}, want: pb.Backup_TARGET_INVALID, says: "nothing is mounted"},
		"directory holds another backup": {arrange: func(b *bench, j *job) {
			other := b.job(request())
			other.req.Uid = "other"
			b.complete(other)
			other.Run()
			b.guest.Set(func() { b.guest.Calls, b.guest.On = nil, map[string]func(){} })
		}, want: pb.Backup_TARGET_INVALID, says: "other"},
		"no space": {req: incrementalRequest(), arrange: func(b *bench, j *job) {
			b.makeParent("root", "data")
			b.guest.Dirty["data"] = 1 << 62
			disk := j.cfg.Disks["data"]
			disk.VirtualBytes = 1 << 62
			j.cfg.Disks["data"] = disk
		}, want: pb.Backup_INSUFFICIENT_SPACE, says: "bytes) free: delete old backups"},
		"base lost, seen early": {req: incrementalRequest(), arrange: func(b *bench, _ *job) {
			b.makeParent("root", "data")
			delete(b.guest.Dirty, "data")
			b.guest.Fail["DirtyBytes"] = fmt.Errorf("x: %w", domain.ErrCheckpointLost)
		}, want: pb.Backup_BASE_LOST, says: "data"},
		"target cannot be made": {arrange: func(b *bench, _ *job) { b.images.fail = errors.New("no qcow2 today") }, want: pb.Backup_HYPERVISOR_ERROR, says: "no qcow2 today"},
		"target full at once":   {arrange: func(b *bench, _ *job) { b.images.fail = fmt.Errorf("x: %w", errclass.Exhausted) }, want: pb.Backup_TARGET_FULL, says: "free): delete old backups"},
		"aborted while preparing": {
			arrange: func(_ *bench, j *job) { j.Fail(backupjob.Aborted()) },
			want:    pb.Backup_ABORTED, says: "aborted",
		},
		"aborted while freezing": {
			arrange: func(b *bench, j *job) { b.guest.On["Freeze"] = func() { j.Fail(backupjob.Aborted()) } },
			want:    pb.Backup_ABORTED, begun: true,
		},
		"begin refused": {
			arrange: func(b *bench, _ *job) { b.guest.Fail["BeginBackup"] = errors.New("libvirt's words") },
			want:    pb.Backup_HYPERVISOR_ERROR, says: "libvirt's words", begun: true,
		},
		"begin panics": {
			arrange: func(b *bench, _ *job) { b.guest.On["BeginBackup"] = func() { panic("a mistake") } },
			want:    pb.Backup_HYPERVISOR_ERROR, says: "a mistake", begun: true,
		},
		"base lost at begin": {req: incrementalRequest(), arrange: func(b *bench, _ *job) {
			b.makeParent("root", "data")
			b.guest.Fail["BeginBackup"] = fmt.Errorf("x: %w", domain.ErrCheckpointLost)
			b.guest.On["BeginBackup"] = func() { b.guest.Set(func() { delete(b.guest.Dirty, "root") }) }
		}, want: pb.Backup_BASE_LOST, says: "root", begun: true},
		"aborted while copying": {arrange: func(b *bench, j *job) {
			b.guest.On["BeginBackup"] = func() { time.AfterFunc(time.Second, func() { j.Fail(backupjob.Aborted()) }) }
		}, want: pb.Backup_ABORTED, begun: true},
		"stopped while copying": {arrange: func(b *bench, j *job) {
			b.guest.On["BeginBackup"] = func() { time.AfterFunc(time.Second, func() { j.Fail(backupjob.Stopped()) }) }
		}, want: pb.Backup_STOPPED, begun: true},
		"abort is refused once": {arrange: func(b *bench, j *job) {
			b.guest.Fail["AbortBackup"] = domain.ErrBusy
			b.guest.On["AbortBackup"] = func() {
				time.AfterFunc(time.Second, func() { b.guest.Set(func() { delete(b.guest.Fail, "AbortBackup") }) })
			}
			b.guest.On["BeginBackup"] = func() { time.AfterFunc(time.Second, func() { j.Fail(backupjob.Aborted()) }) }
		}, want: pb.Backup_ABORTED, begun: true},
		"job fails for want of space": {
			arrange: func(b *bench, j *job) { endsWith(b, j, fmt.Errorf("x: %w", errclass.Exhausted)) },
			want:    pb.Backup_TARGET_FULL, begun: true,
		},
		"job fails": {
			arrange: func(b *bench, j *job) { endsWith(b, j, errors.New("bad sector")) },
			want:    pb.Backup_HYPERVISOR_ERROR, says: "bad sector", begun: true,
		},
		"job fails and the event is lost": {arrange: func(b *bench, _ *job) {
			b.guest.On["BeginBackup"] = func() {
				time.AfterFunc(time.Second, func() {
					b.guest.Set(func() { b.guest.JobInfo = domain.JobInfo{Known: true, Err: errors.New("bad sector")} })
				})
			}
		}, want: pb.Backup_HYPERVISOR_ERROR, says: "bad sector", begun: true},
		"nobody knows how the job ended": {arrange: func(b *bench, _ *job) {
			b.guest.On["BeginBackup"] = func() {
				time.AfterFunc(time.Second, func() { b.guest.Set(func() { b.guest.JobInfo = domain.JobInfo{} }) })
			}
		}, want: pb.Backup_HYPERVISOR_ERROR, says: "does not know", begun: true},
		"libvirt does not answer": {arrange: func(b *bench, _ *job) {
			b.guest.On["BeginBackup"] = func() { b.guest.Set(func() { b.guest.Fail["BackupJob"] = domain.ErrClosed }) }
		}, want: pb.Backup_HYPERVISOR_ERROR, says: "watch", begun: true},
		"paused by an I/O error": {arrange: func(b *bench, j *job) {
			b.guest.On["BeginBackup"] = func() {
				time.AfterFunc(time.Second, func() {
					b.guest.Set(func() { b.guest.State = domain.Info{State: domain.StatePaused, Reason: domain.ReasonIOError} })
					j.Deliver(domain.Event{Kind: domain.EventIOError, Volume: "root", Message: "enospc", Paused: true})
				})
			}
		}, want: pb.Backup_HYPERVISOR_ERROR, says: "paused", begun: true},
		"guest shuts down": {arrange: func(b *bench, j *job) {
			b.gone = true
			b.guest.On["BeginBackup"] = func() { time.AfterFunc(time.Second, func() { j.GuestEnded(backupjob.GuestShutDown) }) }
		}, want: pb.Backup_GUEST_SHUTDOWN, begun: true},
		"guest crashes, and the job says so first": {arrange: func(b *bench, j *job) {
			b.gone = true
			endsWith(b, j, errors.New("canceled"))
			b.guest.On["Info"] = func() { time.AfterFunc(time.Second, func() { j.GuestEnded(backupjob.GuestCrashed) }) }
			b.guest.State = domain.Info{State: domain.StateShutOff}
		}, want: pb.Backup_GUEST_CRASHED, begun: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				req := c.req
				if req == nil {
					req = request()
				}
				j := b.job(req)
				c.arrange(b, j)
				got := b.run(j)
				if got.Phase != pb.Backup_FAILED || got.Failure != c.want || !strings.Contains(got.Message, c.says) || got.Message == "" {
					t.Errorf("%v, want %v that says %q", got, c.want, c.says)
				}
				if begun := b.guest.Count("BeginBackup") > 0; begun != c.begun {
					t.Errorf("begun: %v; calls %v", begun, b.guest.Calls)
				}
				if b.guest.Frozen {
					t.Error("the guest is frozen")
				}
				if found, _ := filepath.Glob(b.dir + "/vm/*.partial"); len(found) > 0 {
					t.Errorf("left: %v", found)
				}
				b.undone(c.begun)
			})
		})
	}
}

// undone checks that everything that libvirt was asked for is undone while the guest exists.
func (b *bench) undone(begun bool) {
	b.Helper()
	deleted := b.guest.Count("DeleteCheckpoint cp2")
	switch {
	case !begun:
		if deleted > 0 {
			b.Error("a checkpoint was deleted that never was")
		}
		return
	case b.gone:
		return
	}
	if b.guest.JobInfo.Active && b.guest.Fail["BackupJob"] == nil {
		b.Error("the job runs on")
	}
	if deleted != 1 {
		b.Errorf("the checkpoint was deleted %d times", deleted)
	}
	if b.guest.State.Reason == domain.ReasonIOError && b.guest.Count("Resume") == 0 {
		b.Error("the guest was not resumed")
	}
}

func endsWith(b *bench, j *job, err error) {
	b.guest.On["BeginBackup"] = func() {
		time.AfterFunc(time.Second, func() {
			b.guest.Set(func() { b.guest.JobInfo = domain.JobInfo{Known: true, Err: err} })
			j.Deliver(domain.Event{Kind: domain.EventBackupCompleted, Err: err})
		})
	}
}

func TestFailures_checkpointIsDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		j := b.job(request())
		endsWith(b, j, errors.New("bad sector"))
		b.run(j)
		if b.guest.Count("DeleteCheckpoint cp2") != 1 {
			t.Errorf("calls: %v", b.guest.Calls)
		}
	})
}

// A late event of an earlier job does not end this one.
func TestJob_eventIsBelievedOnlyIfItHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		j := b.job(request())
		b.guest.On["BeginBackup"] = func() {
			j.Deliver(domain.Event{Kind: domain.EventBackupCompleted, Err: errors.New("of another job")})
			time.AfterFunc(30*time.Second, func() {
				b.guest.Set(func() { b.guest.JobInfo = domain.JobInfo{Known: true, TotalBytes: 1} })
			})
		}
		if got := b.run(j); got.Phase != pb.Backup_DONE {
			t.Errorf("%v", got)
		}
	})
}

func TestQuiesce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		arrange func(b *bench, req *pb.BeginBackupRequest)
		want    pb.Backup_Quiesce
		freezes int
	}{
		"skipped":      {func(_ *bench, req *pb.BeginBackupRequest) { req.SkipQuiesce = true }, pb.Backup_SKIPPED, 0},
		"agent absent": {func(b *bench, _ *pb.BeginBackupRequest) { b.agent = false }, pb.Backup_AGENT_ABSENT, 0},
		"refused":      {func(b *bench, _ *pb.BeginBackupRequest) { b.guest.Fail["Freeze"] = domain.ErrAgent }, pb.Backup_FREEZE_FAILED, 1},
		"frozen by somebody else": {func(b *bench, _ *pb.BeginBackupRequest) {
			b.guest.Frozen = true
			b.guest.On["Thaw"] = func() { panic("thawed what it did not freeze") }
		}, pb.Backup_FROZEN, 0},
		"silent": {func(b *bench, _ *pb.BeginBackupRequest) { b.guest.Fail["FSFrozen"] = domain.ErrAgent }, pb.Backup_FREEZE_FAILED, 0},
		"frozen": {func(*bench, *pb.BeginBackupRequest) {}, pb.Backup_FROZEN, 1},
		"thaw fails at first": {func(b *bench, _ *pb.BeginBackupRequest) {
			b.guest.Fail["Thaw"] = domain.ErrAgent
			time.AfterFunc(20*time.Second, func() { b.guest.Set(func() { delete(b.guest.Fail, "Thaw") }) })
		}, pb.Backup_THAWED_EARLY, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, req := newBench(t), request()
				c.arrange(b, req)
				j := b.job(req)
				b.complete(j)
				j.Run()
				time.Sleep(time.Minute) // the longest that the watchdog takes
				synctest.Wait()
				got := j.Snapshot()
				if got.Phase != pb.Backup_DONE || got.Quiesce != c.want || b.guest.Count("Freeze") != c.freezes {
					t.Errorf("%v, %d freezes", got, b.guest.Count("Freeze"))
				}
				if foreign := name == "frozen by somebody else"; b.guest.Frozen != foreign || b.freezer.Frozen() {
					t.Error("the guest is frozen, or was thawed by the wrong party")
				}
				b.endLife()
				b.freezer.Wait()
			})
		})
	}
}

// A begin that hangs does not keep the guest frozen.
func TestQuiesce_guestIsThawedWhileTheBeginHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		j := b.job(request())
		b.guest.On["BeginBackup"] = func() { time.Sleep(time.Hour) }
		go j.Run()
		time.Sleep(freeze.Limit + time.Second)
		synctest.Wait()
		b.guest.Set(func() {
			if b.guest.Frozen {
				t.Error("the guest is still frozen")
			}
		})
		j.Fail(backupjob.Aborted())
		<-j.Done()
		b.endLife()
		b.freezer.Wait()
	})
}

func TestRequest_invalidOnesAreRefused(t *testing.T) {
	t.Parallel()
	for name, breakIt := range map[string]func(*pb.BeginBackupRequest){
		"no uid":               func(r *pb.BeginBackupRequest) { r.Uid = "" },
		"directory leads out":  func(r *pb.BeginBackupRequest) { r.Directory = "../x" },
		"absolute directory":   func(r *pb.BeginBackupRequest) { r.Directory = "/x" },
		"target leads out":     func(r *pb.BeginBackupRequest) { r.TargetVolume = ".." },
		"no volumes":           func(r *pb.BeginBackupRequest) { r.Volumes = nil },
		"unknown volume":       func(r *pb.BeginBackupRequest) { r.Volumes[0].Volume = "x" },
		"volume twice":         func(r *pb.BeginBackupRequest) { r.Volumes[0].Volume = "data" },
		"incremental, no base": func(r *pb.BeginBackupRequest) { r.Volumes[0].Incremental = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := request()
			breakIt(req)
			b := newBench(t)
			if _, err := New(context.Background(), b.cfg, req); !errors.Is(err, backupjob.ErrRequest) {
				t.Errorf("%v", err)
			}
		})
	}
	b := newBench(t)
	b.cfg.Disks["data"] = backupjob.Disk{VirtualBytes: 1 << 20}
	if _, err := New(context.Background(), b.cfg, request()); !errors.Is(err, backupjob.ErrRequest) {
		t.Errorf("a checkpoint of an untracked disk: %v", err)
	}
}

func TestEstimate_boundsARealFile(t *testing.T) {
	t.Parallel()
	const mib, gib = 1 << 20, 1 << 30
	// The size that qemu-img produces from a disk of 10 GiB with 200 MiB of data in pieces of 4 MiB, 200 MiB apart: 201.5 MiB.
	if got := targetBytes(200*mib, 10*gib); got < 201*mib+mib/2 || got > 205*mib {
		t.Errorf("%d bytes", got)
	}
	for _, virtual := range []uint64{0, 1, mib, gib, 64 << 40} {
		for _, data := range []uint64{0, 1, 64 << 10, virtual} {
			if got := targetBytes(data, virtual); got < min(data, virtual) {
				t.Errorf("%d of %d bytes need %d", data, virtual, got)
			}
		}
	}
}

func TestFormatBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536 << 20: "1.5 GiB", 1 << 62: "4096.0 PiB"} {
		if got := formatBytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
