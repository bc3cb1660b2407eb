package push

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// A job that copies nothing for a minute is aborted, whatever it copied before.
func TestStall_freesTheGuest(t *testing.T) {
	t.Parallel()
	for name, movesFor := range map[string]time.Duration{"from the beginning": 0, "after a while": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				begun := time.Now()
				b.guest.On["BeginBackup"] = func() {
					go func() {
						for at := time.Duration(0); at < movesFor; at += stalledAfter / 2 {
							time.Sleep(stalledAfter / 2)
							b.guest.Set(func() { b.guest.JobInfo.ProcessedBytes++ })
						}
					}()
				}
				var aborted time.Duration
				b.guest.On["AbortBackup"] = func() { aborted = time.Since(begun) }
				got := b.run(b.job(request()))
				if got.Failure != pb.Backup_TARGET_STALLED || !strings.Contains(got.Message, "nothing was copied for 1m0s") {
					t.Errorf("%v", got)
				}
				if least := movesFor + stalledAfter; aborted < least || aborted > least+2*backupjob.PollInterval {
					t.Errorf("aborted after %s, want %s", aborted, least)
				}
				if b.guest.Count("DeleteCheckpoint cp2") != 1 {
					t.Error("the checkpoint is left")
				}
			})
		})
	}
}

// A job that an earlier backup could not end, because libvirt did not answer, is ended before the next backup begins.
func TestStray_jobIsEndedBeforeTheNextBackup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.guest.JobInfo = domain.JobInfo{Active: true, Known: true}
		j := b.job(request())
		b.complete(j)
		if got := b.run(j); got.Phase != pb.Backup_DONE || b.guest.Count("AbortBackup") != 1 {
			t.Errorf("%v after %v", got, b.guest.Calls)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.guest.JobInfo = domain.JobInfo{Active: true, Known: true}
		b.guest.Fail["AbortBackup"] = domain.ErrBusy
		if got := b.run(b.job(request())); got.Phase != pb.Backup_FAILED || b.guest.Count("PrepareBackup") > 0 {
			t.Errorf("%v after %v", got, b.guest.Calls)
		}
	})
}

// A begin that libvirt does not answer in time is given up. The same backup aborts its job as soon as libvirt allows it.
func TestStray_jobThatBeginsLateIsAborted(t *testing.T) {
	t.Parallel()
	for frozen, limit := range map[bool]time.Duration{true: backupjob.BeginFrozenTimeout, false: backupjob.BeginTimeout} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			const late = backupjob.AbortTimeout / 2
			b.agent, b.guest.BeginTakes = frozen, limit+late
			started := time.Now()
			got := b.run(b.job(request()))
			if got.Failure != pb.Backup_HYPERVISOR_ERROR || b.guest.JobInfo.Active || b.guest.Count("DeleteCheckpoint cp2") != 1 {
				t.Errorf("frozen %v: %v, job %+v", frozen, got, b.guest.JobInfo)
			}
			if took := time.Since(started); took < limit+late || took > limit+late+2*backupjob.PollInterval {
				t.Errorf("frozen %v: ended after %s, libvirt had begun after %s", frozen, took, limit+late)
			}
			if thawed := time.Duration(got.FrozenMillis) * time.Millisecond; frozen && (thawed < limit || thawed > limit+time.Second) {
				t.Errorf("the guest was frozen for %s, want %s", thawed, limit)
			}
		})
	}
}
