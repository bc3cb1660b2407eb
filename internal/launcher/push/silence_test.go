package push

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// The target's storage gives no answer any more. The job is aborted and the guest resumed at once, and the backup ends.
func TestSilentTarget_holdsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		silent, answer := make(chan struct{}), make(chan struct{})
		defer close(answer)
		opened := b.cfg.OpenTarget
		b.cfg.OpenTarget = func(name string) (*target.Volume, error) {
			v, err := opened(name)
			v.Before = func(string) error {
				select {
				case <-silent:
					<-answer
				default:
				}
				return nil
			}
			return v, err
		}
		var failed time.Time
		var aborted, resumed time.Duration
		b.guest.On["AbortBackup"] = func() { aborted = time.Since(failed) }
		b.guest.On["Resume"] = func() { resumed = time.Since(failed) }
		j := b.job(request())
		b.guest.On["BeginBackup"] = func() {
			time.AfterFunc(time.Minute/2, func() {
				close(silent)
				failed = time.Now()
				b.guest.Set(func() { b.guest.State = domain.Info{State: domain.StatePaused, Reason: domain.ReasonIOError} })
				j.Fail(backupjob.Aborted())
			})
		}
		got := b.run(j)
		if got.Failure != pb.Backup_ABORTED || !strings.Contains(got.Message, "files may be left in vm/b2.partial") {
			t.Errorf("%v", got)
		}
		if b.guest.Count("AbortBackup") != 1 || aborted > time.Second || b.guest.Count("Resume") != 1 || resumed > time.Second {
			t.Errorf("aborted after %s and resumed after %s: %v", aborted, resumed, b.guest.Calls)
		}
		if took := time.Since(failed); took > 2*time.Minute {
			t.Errorf("the backup ended %s after its failure", took)
		}
	})
}
