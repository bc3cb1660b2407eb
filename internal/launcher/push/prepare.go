package push

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

const (
	// prepareTimeout bounds everything before the guest is touched.
	prepareTimeout = 2 * time.Minute
	// beginTimeout bounds virDomainBackupBegin. libvirt itself gives up on a busy domain after 30 s.
	beginTimeout = 60 * time.Second
	// beginFrozenTimeout bounds it while the guest is frozen. Together with the time to freeze, and to ask whether
	// somebody else's freeze held, it is below freeze.Limit.
	beginFrozenTimeout = 15 * time.Second
)

// prepareTarget makes the target and libvirt's job ready. The guest does not notice it.
func (j *Job) prepareTarget(ctx context.Context) (domain.BeginFunc, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	volume, err := j.cfg.OpenTarget(j.req.TargetVolume)
	if err != nil {
		return nil, err
	}
	j.progress.volume = volume
	if err := j.endStray(ctx); err != nil {
		return nil, fmt.Errorf("end the job of an earlier backup: %w", err)
	}
	if err := j.checkParent(); err != nil {
		return nil, err
	}
	need, err := j.estimateBytes(ctx)
	if err != nil {
		return nil, err
	}
	j.progress.sealBytes = need
	// Begin removes what an earlier attempt left, so check the free space after it.
	j.progress.partial = true
	if err := volume.Begin(j.req.Directory, j.req.Uid); err != nil {
		return nil, err
	}
	free, err := volume.FreeBytes()
	if err != nil {
		return nil, err
	}
	if err := checkSpace(need, free); err != nil {
		return nil, err
	}
	for _, v := range j.req.Volumes {
		if err := j.cfg.Images.CreateTarget(ctx, j.targetPath(v.Volume), j.cfg.Disks[v.Volume].VirtualBytes); err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Volume, err)
		}
	}
	return j.cfg.Guest.PrepareBackup(ctx, j.backupPlan())
}

func (j *Job) targetPath(volume string) string {
	return j.progress.volume.Path(target.PartialFile(j.req.Directory, volume))
}

// fixPointInTime fixes the point in time, with the guest frozen if possible.
func (j *Job) fixPointInTime(ctx context.Context, begin domain.BeginFunc) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	frozen, quiesce, message := j.freezeGuest(ctx)
	j.updateState(func(b *pb.Backup) { b.Quiesce, b.QuiesceMessage = quiesce, message })

	pointInTime := j.cfg.Clock.Now()
	j.progress.begun = true
	if err := j.beginJob(begin, frozen); err != nil {
		return j.beginFailed(err)
	}
	j.cfg.Log.Info("point in time fixed", "backup", j.req.Name, "uid", j.req.Uid, "quiesce", quiesce.String(), "begin", j.cfg.Clock.Since(pointInTime), "frozenMillis", j.Snapshot().FrozenMillis)
	j.updateState(func(b *pb.Backup) {
		b.Phase, b.PointInTime = pb.Backup_COPYING, timestamppb.New(pointInTime)
	})
	return nil
}

// beginJob begins libvirt's job and thaws the guest at once, even if the begin panics.
func (j *Job) beginJob(begin domain.BeginFunc, frozen *freeze.Frozen) error {
	if frozen == nil {
		return j.beginWithin(beginTimeout, begin)
	}
	j.progress.frozen = frozen
	var doubt error
	defer func() {
		frozenFor, early := frozen.Thaw(), frozen.ThawedEarly()
		if errors.Is(early, freeze.ErrUnanswered) {
			early = nil // confirmFreeze waits for the answer.
		}
		j.judgeFreeze(frozenFor, doubt, early)
	}()
	if err := j.beginWithin(beginFrozenTimeout, begin); err != nil {
		return err
	}
	if frozen.Foreign() {
		doubt = j.cfg.Freezer.StillFrozen(context.WithoutCancel(j.ctx))
	}
	return nil
}

// confirmFreeze waits for the answer to a thaw that has taken longer than the begin waited for it. After it the state
// says whether the guest was frozen at the point in time.
func (j *Job) confirmFreeze(ctx context.Context) {
	if frozen := j.progress.frozen; frozen != nil {
		frozenFor := frozen.AwaitThaw(ctx, freeze.AnswerPatience)
		j.judgeFreeze(frozenFor, frozen.ThawedEarly())
	}
}

// judgeFreeze notes how long the guest was frozen, and what speaks against a freeze that held.
func (j *Job) judgeFreeze(frozenFor time.Duration, doubts ...error) {
	doubt := errors.Join(doubts...)
	j.updateState(func(b *pb.Backup) {
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

func (j *Job) backupPlan() domain.Backup {
	b := domain.Backup{Checkpoint: j.req.Checkpoint}
	for _, v := range j.req.Volumes {
		disk := domain.BackupDisk{Volume: v.Volume, Target: j.targetPath(v.Volume)}
		if v.Incremental {
			disk.Incremental = j.req.BaseCheckpoint
		}
		b.Disks = append(b.Disks, disk)
	}
	return b
}

// beginFailed finds out which disks have lost their base, if that is why the begin failed.
func (j *Job) beginFailed(err error) error {
	wanted := incrementalVolumes(j.req)
	if !isLost(err) || len(wanted) == 0 {
		return err // the error says what was attempted
	}
	ctx, cancel := j.boundedContext(backupjob.CallTimeout)
	defer cancel()
	dirty, dirtyErr := j.cfg.Guest.DirtyBytes(ctx, j.req.BaseCheckpoint)
	if dirtyErr != nil && !isLost(dirtyErr) {
		return baseLost(nil, wanted, err)
	}
	return baseLost(withoutCount(wanted, dirty), wanted, err)
}
