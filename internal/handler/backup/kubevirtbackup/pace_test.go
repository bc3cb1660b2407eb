package kubevirtbackup

import (
	"context"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/handler/launcherclient"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// statusWriter calls a function instead of each write of a status.
type statusWriter struct {
	client.Client

	patched func()
}

func (w statusWriter) Status() client.SubResourceWriter { return statusPatcher{patched: w.patched} }

type statusPatcher struct {
	client.SubResourceWriter

	patched func()
}

func (p statusPatcher) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	p.patched()
	return nil
}

// A night of a thousand backups must not cause a thousand status writes a second. Others wait only for a change of
// phase.
func TestProgress_isWrittenEveryFiveSecondsAtMost(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	second := 0
	var written []int
	w := statusWriter{patched: func() { written = append(written, second) }}
	r := &Reconciler{Clock: clock, Cached: w, Events: events.NewFakeRecorder(10)}
	b := &backupv1.VirtualMachineBackup{}
	b.UID, b.Status.Phase = "b", backupv1.BackupStarting
	for ; second <= 13; second++ {
		job := &pb.Backup{Uid: "b", Phase: pb.Backup_PREPARING, CopyMillis: int64(second + 1)}
		if second >= 2 {
			job.Phase, job.TotalBytes, job.ProcessedBytes = pb.Backup_COPYING, 100, uint64(second)
		}
		s := &gathered{backup: b.DeepCopy(), before: b, instance: &kubevirtv1.VirtualMachineInstance{}, launcher: &launcherclient.Client{}, state: &pb.State{Phase: pb.State_RUNNING, Backup: job}}
		before := len(written)
		result, err := r.superviseJob(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if len(written) > before {
			b = s.backup
		} else if next := written[before-1] + 5; result.RequeueAfter != time.Duration(next-second)*time.Second {
			t.Errorf("after %d s the next report waits %s", second, result.RequeueAfter)
		}
		clock.SetTime(clock.Now().Add(time.Second))
	}
	// The phase changes after 2 s.
	if want := []int{0, 2, 7, 12}; !slices.Equal(written, want) {
		t.Errorf("written after %v s, want %v", written, want)
	}
}
