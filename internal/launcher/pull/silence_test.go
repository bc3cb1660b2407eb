package pull

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		v.Before = func(access string) {
			if !strings.Contains(strings.Join(accesses, " "), access) {
				return
			}
			select {
			case <-silent:
				<-answer
			default:
			}
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
