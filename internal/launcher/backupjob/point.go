package backupjob

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

const (
	// BeginTimeout bounds virDomainBackupBegin. libvirt itself gives up on a busy domain after 30 s.
	BeginTimeout = 60 * time.Second
	// BeginFrozenTimeout bounds it while the guest is frozen. Together with the time to freeze, and to ask whether
	// somebody else's freeze held, it is below freeze.Limit.
	BeginFrozenTimeout = 15 * time.Second
)

// fixPointInTime fixes the point in time, with the guest frozen if possible.
func (j *Job) fixPointInTime(ctx context.Context, begin domain.BeginFunc) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	frozen, quiesce, message := j.freezeGuest(ctx)
	if frozen == nil { // what a freeze was worth is known after the thaw
		j.UpdateState(func(b *pb.Backup) { b.Quiesce, b.QuiesceMessage = quiesce, message })
	}

	pointInTime := j.cfg.Clock.Now()
	j.progress.begun = true
	if err := j.beginJob(begin, frozen); err != nil {
		return j.beginFailed(err)
	}
	j.cfg.Log.Info("point in time fixed", "backup", j.req.Name, "uid", j.req.Uid, "quiesce", quiesce.String(), "begin", j.cfg.Clock.Since(pointInTime), "frozenMillis", j.Snapshot().FrozenMillis)
	j.UpdateState(func(b *pb.Backup) {
		b.Phase, b.PointInTime = pb.Backup_COPYING, timestamppb.New(pointInTime)
	})
	return nil
}

// beginJob begins libvirt's job and thaws the guest at once, even if the begin panics.
func (j *Job) beginJob(begin domain.BeginFunc, frozen *freeze.Frozen) error {
	if frozen == nil {
		return j.beginWithin(BeginTimeout, begin)
	}
	j.progress.frozen = frozen
	defer func() {
		frozenFor := frozen.Thaw()
		if errors.Is(frozen.ThawedEarly(), freeze.ErrUnanswered) {
			// ConfirmFreeze waits for the answer. Until then the state says nothing of a freeze.
			j.UpdateState(func(b *pb.Backup) { b.FrozenMillis = frozenFor.Milliseconds() })
			return
		}
		j.judgeFreeze(frozenFor)
	}()
	if err := j.beginWithin(BeginFrozenTimeout, begin); err != nil {
		return err
	}
	if frozen.Foreign() {
		j.progress.doubt = j.cfg.Freezer.StillFrozen(context.WithoutCancel(j.ctx))
	}
	return nil
}

// ConfirmFreeze waits for the answer to a thaw that has taken longer than the begin waited for it. After it the state
// says whether the guest was frozen at the point in time. If there is still no answer, it says that this is doubtful, and
// another call finds out more.
func (j *Job) ConfirmFreeze(ctx context.Context) {
	if frozen := j.progress.frozen; frozen != nil {
		j.judgeFreeze(frozen.AwaitThaw(ctx, freeze.AnswerPatience))
	}
}

// judgeFreeze notes how long the guest was frozen, and whether that held.
func (j *Job) judgeFreeze(frozenFor time.Duration) {
	quiesce, message := pb.Backup_FROZEN, ""
	if j.progress.frozen.Foreign() {
		message = "the file systems were frozen before the backup began and stay so until whoever froze them thaws them"
	}
	if doubt := errors.Join(j.progress.doubt, j.progress.frozen.ThawedEarly()); doubt != nil {
		quiesce = pb.Backup_THAWED_EARLY
		message = fmt.Sprintf("the guest may have been thawed before the point in time (%v): the backup is crash consistent", doubt)
	}
	j.UpdateState(func(b *pb.Backup) {
		b.FrozenMillis, b.Quiesce, b.QuiesceMessage = frozenFor.Milliseconds(), quiesce, message
	})
}

// beginWithin ignores an abort: half a begin is worse than a complete one that is undone.
func (j *Job) beginWithin(limit time.Duration, begin domain.BeginFunc) error {
	ctx, cancel := j.boundedContext(limit)
	defer cancel()
	return begin(ctx)
}

// freezeGuest never fails a backup. Without a freeze the backup is crash consistent, and the state says so.
func (j *Job) freezeGuest(ctx context.Context) (*freeze.Frozen, pb.Backup_Quiesce, string) {
	switch {
	case j.req.SkipQuiesce:
		return nil, pb.Backup_SKIPPED, ""
	case !j.cfg.AgentConnected():
		return nil, pb.Backup_AGENT_ABSENT, "no guest agent is connected: the backup is crash consistent"
	}
	frozen, err := j.cfg.Freezer.Freeze(ctx)
	if err != nil {
		return nil, pb.Backup_FREEZE_FAILED, err.Error()
	}
	return frozen, pb.Backup_FROZEN, ""
}

// beginFailed finds out which disks have lost their base, if that is why the begin failed.
func (j *Job) beginFailed(err error) error {
	wanted := IncrementalVolumes(j.req)
	if !isLost(err) || len(wanted) == 0 {
		return err // the error says what was attempted
	}
	ctx, cancel := j.boundedContext(CallTimeout)
	defer cancel()
	dirty, dirtyErr := j.cfg.Guest.DirtyBytes(ctx, j.req.BaseCheckpoint)
	if dirtyErr != nil && !isLost(dirtyErr) {
		return baseLost(nil, wanted, err)
	}
	return baseLost(withoutCount(wanted, dirty), wanted, err)
}
