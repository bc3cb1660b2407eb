package pull

import (
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// silence has the scratch volume's storage give no answer to some accesses from the call of the first function that it
// returns until that of the second.
func (b *bench) silence(accesses ...string) (begin, end func()) {
	silent, answer := make(chan struct{}), make(chan struct{})
	opened := b.cfg.OpenTarget
	b.cfg.OpenTarget = func(name string) (*target.Volume, error) {
		v, err := opened(name)
		v.Before = func(access string) error {
			if !slices.Contains(accesses, access) {
				return nil
			}
			select {
			case <-silent:
				<-answer
			default:
			}
			return nil
		}
		return v, err
	}
	return func() { close(silent) }, func() { close(answer) }
}

// The scratch volume gives no answer any more. The job is aborted and the guest resumed at once, and the backup ends.
func TestSilentScratch_holdsUpNobody(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(j *Job){
		"failed":   func(j *Job) { j.Fail(backupjob.Aborted()) },
		"finished": func(j *Job) { _ = j.Finish() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				begin, answer := b.silence("free", "remove")
				var ended time.Time
				var aborted, resumed time.Duration
				b.guest.On["AbortBackup"] = func() { aborted = time.Since(ended) }
				b.guest.On["Resume"] = func() { resumed = time.Since(ended) }
				var j *Job
				b.whenServing(&j, func(j *Job) {
					begin()
					time.Sleep(10 * time.Second)
					ended = time.Now()
					b.guest.Set(func() { b.guest.State = domain.Info{State: domain.StatePaused, Reason: domain.ReasonIOError} })
					end(j)
				})
				j = b.job()
				j.Run()
				got := j.Snapshot()
				if name == "failed" && (got.Failure != pb.Backup_ABORTED || !strings.Contains(got.Message, "files may be left in vm/b2.partial")) || name == "finished" && got.Phase != pb.Backup_DONE {
					t.Errorf("%v", got)
				}
				if b.guest.Count("AbortBackup") != 1 || aborted > time.Second || b.guest.Count("Resume") != 1 || resumed > time.Second {
					t.Errorf("aborted after %s and resumed after %s: %v", aborted, resumed, b.guest.Calls)
				}
				if took := time.Since(ended); took > 2*time.Minute {
					t.Errorf("the backup ended %s after that", took)
				}
				answer()
				b.endLife()
				b.freezer.Wait()
				synctest.Wait()
				if left, err := os.ReadDir(b.dir); err != nil || len(left) != 1 {
					t.Errorf("left: %v, %v", left, err)
				}
			})
		})
	}
}

// A look at the free space that fails says nothing about it, and is no sign of life either.
func TestWatch_failingLooksSayNothing(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]time.Duration{"for a while": stalledAfter / 2, "for good": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				var failing atomic.Bool
				opened := b.cfg.OpenTarget
				b.cfg.OpenTarget = func(name string) (*target.Volume, error) {
					v, err := opened(name)
					v.Before = func(access string) error {
						if failing.Load() && access == "free" {
							return unix.ESTALE
						}
						return nil
					}
					return v, err
				}
				var j *Job
				over := make(chan struct{})
				b.whenServing(&j, func(j *Job) {
					defer close(over)
					time.Sleep(time.Second)
					free := j.Snapshot().ScratchFreeBytes
					failing.Store(true)
					time.AfterFunc(fails, func() { failing.Store(false) })
					b.guest.Set(func() { b.guest.JobInfo.TempBytes++ })
					time.Sleep(time.Second)
					if got := j.Snapshot().ScratchFreeBytes; free == 0 || got == 0 {
						t.Errorf("%d bytes are free, after %d", got, free)
					}
					time.Sleep(2 * stalledAfter)
					_ = j.Finish()
				})
				j = b.job()
				got := b.run(j)
				<-over
				if fails == time.Hour && (got.Failure != pb.Backup_TARGET_STALLED || !strings.Contains(got.Message, unix.ESTALE.Error())) {
					t.Errorf("%v", got)
				}
				if fails < time.Hour && got.Phase != pb.Backup_DONE {
					t.Errorf("%v", got)
				}
			})
		})
	}
}

// A block device below the scratch volume hangs: the file system still tells its free space.
func TestWatch_findsADeviceThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		begin, answer := b.silence("probe")
		var silent atomic.Pointer[time.Time]
		var aborted time.Duration
		b.guest.On["AbortBackup"] = func() {
			aborted = time.Since(*silent.Load())
			time.AfterFunc(20*time.Second, answer)
		}
		var j *Job
		b.whenServing(&j, func(*Job) {
			time.Sleep(time.Hour)
			now := time.Now()
			silent.Store(&now)
			begin()
			time.AfterFunc(5*stalledAfter, func() { j.Fail(backupjob.Aborted()) })
		})
		j = b.job()
		if got := b.run(j); got.Failure != pb.Backup_TARGET_STALLED || aborted == 0 || aborted > stalledAfter+2*time.Second {
			t.Errorf("aborted after %s: %v", aborted, got)
		}
		time.Sleep(time.Minute) // the probe ends with its answer
	})
}

// What the file system says it has free is not always there, as with a quota or a thin volume.
func TestWatch_findsADeviceThatIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		opened := b.cfg.OpenTarget
		b.cfg.OpenTarget = func(name string) (*target.Volume, error) {
			v, err := opened(name)
			v.Before = func(access string) error {
				if access == "probe" {
					return unix.ENOSPC
				}
				return nil
			}
			return v, err
		}
		j := b.job()
		time.AfterFunc(time.Hour, func() { j.Fail(backupjob.Aborted()) })
		if got := b.run(j); got.Failure != pb.Backup_SCRATCH_FULL {
			t.Errorf("%v", got)
		}
	})
}
