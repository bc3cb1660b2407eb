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
	j.UpdateState(func(b *pb.Backup) { b.Quiesce, b.QuiesceMessage = quiesce, message })

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
	var doubt error
	defer func() {
		frozenFor, early := frozen.Thaw(), frozen.ThawedEarly()
		if errors.Is(early, freeze.ErrUnanswered) {
			early = nil // ConfirmFreeze waits for the answer.
		}
		j.judgeFreeze(frozenFor, doubt, early)
	}()
	if err := j.beginWithin(BeginFrozenTimeout, begin); err != nil {
		return err
	}
	if frozen.Foreign() {
		doubt = j.cfg.Freezer.StillFrozen(context.WithoutCancel(j.ctx))
	}
	return nil
}

// ConfirmFreeze waits for the answer to a thaw that has taken longer than the begin waited for it. After it the state
// says whether the guest was frozen at the point in time.
func (j *Job) ConfirmFreeze(ctx context.Context) {
	if frozen := j.progress.frozen; frozen != nil {
		frozenFor := frozen.AwaitThaw(ctx, freeze.AnswerPatience)
		j.judgeFreeze(frozenFor, frozen.ThawedEarly())
	}
}

// judgeFreeze notes how long the guest was frozen, and what speaks against a freeze that held.
func (j *Job) judgeFreeze(frozenFor time.Duration, doubts ...error) {
	doubt := errors.Join(doubts...)
	j.UpdateState(func(b *pb.Backup) {
		b.FrozenMillis = frozenFor.Milliseconds()
		if doubt != nil {
			b.Quiesce = pb.Backup_THAWED_EARLY
			b.QuiesceMessage = fmt.Sprintf("the guest may have been thawed before the point in time (%v): the backup is crash consistent", doubt)
		}
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
	if frozen.Foreign() {
		return frozen, pb.Backup_FROZEN, "the file systems were frozen before the backup began and stay so until whoever froze them thaws them"
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
