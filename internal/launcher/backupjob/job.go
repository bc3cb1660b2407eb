// Package backupjob is what every backup of a running guest has in common, however its data leaves the guest: the
// freeze, the begin of libvirt's job and with it the point in time, the watch over that job, and the cleanup. A Mode moves
// the data.
//
// The phases are those of launcher.proto. PREPARING checks, and touches the guest only at its end, when it freezes the
// guest while the backup begins. A backup ends DONE or FAILED. Neither leaves a job or a paused guest behind, and a
// failed one leaves no checkpoint. libvirt may refuse to end the job, as when the storage of the backup hangs. Then the
// backup says that it has failed, and is done only when the job has ended: no file is removed before that, and no other
// backup begins.
//
// The guest always comes first. It is frozen for a bounded time (package freeze). If the guest pauses because the storage of
// the backup is out of space, the backup fails and the guest continues. The end of the guest ends the backup.
package backupjob

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/guard"
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// prepareTimeout bounds everything before the guest is touched.
const prepareTimeout = 2 * time.Minute

// Guest is what a backup needs of the guest's domain. domain.Session implements it. Its errors wrap the classes of
// package domain. Each call is bounded by its context or by itself.
type Guest interface {
	freeze.Agent
	Info(ctx context.Context) (domain.Info, error)
	Resume(ctx context.Context) error
	PrepareBackup(ctx context.Context, b domain.Backup) (domain.BeginFunc, error)
	BackupJob(ctx context.Context) (domain.JobInfo, error)
	AbortBackup(ctx context.Context) error
	DirtyBytes(ctx context.Context, checkpoint string) (map[string]uint64, error)
	DeleteCheckpoint(ctx context.Context, name string) error
}

// Disk is a disk of the guest.
type Disk struct {
	// RawPath is the raw disk below the overlay.
	RawPath string
	// VirtualBytes is the size of the disk in bytes.
	VirtualBytes int64
	// Tracked says that the disk has an overlay, so that it can have a checkpoint.
	Tracked bool
}

// Config is the configuration of a backup.
type Config struct {
	Guest   Guest
	Freezer *freeze.Freezer
	Clock   clock.WithTicker
	Log     *slog.Logger
	// Disks are the guest's disks, by volume.
	Disks map[string]Disk
	// AgentConnected says whether a guest agent is connected.
	AgentConnected func() bool
	// Changed is called after each change of the state.
	Changed func()
}

// Mode moves the data of a backup. Run calls its methods one after the other.
type Mode interface {
	// Prepare makes ready what needs no point in time, and returns what libvirt is to begin. The guest does not notice it.
	Prepare(ctx context.Context) (domain.BeginFunc, error)
	// Move moves the data after the point in time. When it returns nil, the backup is complete, and libvirt's job has ended.
	Move(ctx context.Context) error
	// Inspect is called when the backup has failed and the guest is free of it, or libvirt refuses that for long. The function
	// that it returns says which failure of this mode an error is, or returns nil. It returns soon, even if the storage of the
	// backup does not answer.
	Inspect(begun bool) func(error) *Failure
	// Discard removes what a failed backup has left, or says what it had to leave because the storage of the backup does not
	// answer. libvirt's job has ended, or the guest has.
	Discard() error
}

// GuestEnd says whether and how the guest ended.
type GuestEnd int

const (
	// GuestLives: the guest has not ended.
	GuestLives GuestEnd = iota
	// GuestShutDown: the guest shut down.
	GuestShutDown
	// GuestCrashed: the guest, its QEMU or its libvirt died.
	GuestCrashed
)

// Job is one backup. It has one goroutine, Run. Any goroutine may call its other methods, except for those that belong to
// its Mode.
type Job struct {
	cfg  Config
	req  *pb.BeginBackupRequest
	mode Mode

	// ctx ends the work, but not its cleanup. Its cause is a *Failure or a *pausedError.
	ctx    context.Context //nolint:containedctx // the job's life, not a call's
	cancel context.CancelCauseFunc
	// life ends with the guest. It bounds the cleanup.
	life    context.Context //nolint:containedctx // the guest's life, not a call's
	endLife context.CancelFunc
	done    chan struct{}
	// completed holds the last event about the end of libvirt's job.
	completed chan error
	watcher   *Watcher

	mu    sync.Mutex
	state *pb.Backup
	end   GuestEnd

	// progress belongs to Run's goroutine.
	progress progress
}

// progress is how far a backup has come, and so what must be undone.
type progress struct {
	// begun: libvirt was asked to begin, so that a checkpoint may exist.
	begun bool
	// frozen is the freeze of this backup, or nil.
	frozen *freeze.Frozen
	// doubt is what speaks against a freeze by somebody else having held, or nil.
	doubt error
	// ended: libvirt's job has ended.
	ended bool
}

// New returns a backup that Run will carry out, with the mode that makeMode returns for it. ctx bounds its work, but not
// its cleanup. An error says what is wrong with the request.
func New(ctx context.Context, cfg Config, req *pb.BeginBackupRequest, makeMode func(*Job) Mode) (*Job, error) {
	if err := validateRequest(req, cfg.Disks); err != nil {
		return nil, err
	}
	life, endLife := context.WithCancel(context.WithoutCancel(ctx))
	ctx, cancel := context.WithCancelCause(ctx)
	completed := make(chan error, 1)
	j := &Job{
		cfg: cfg, ctx: ctx, cancel: cancel, life: life, endLife: endLife,
		req:  proto.CloneOf(req), // a mode makes a disk full in it if the disk's parent is missing
		done: make(chan struct{}), completed: completed,
		watcher: &Watcher{Guest: cfg.Guest, Clock: cfg.Clock, Completed: completed},
		state:   &pb.Backup{Uid: req.Uid, Phase: pb.Backup_PREPARING, Volumes: plannedVolumes(req, cfg.Disks)},
	}
	j.mode = makeMode(j)
	return j, nil
}

func plannedVolumes(req *pb.BeginBackupRequest, disks map[string]Disk) []*pb.BackedUpVolume {
	var volumes []*pb.BackedUpVolume
	for _, v := range req.Volumes {
		volumes = append(volumes, &pb.BackedUpVolume{
			Volume: v.Volume, Incremental: v.Incremental, VirtualBytes: uint64(disks[v.Volume].VirtualBytes),
		})
	}
	return volumes
}

// UID returns the backup's UID.
func (j *Job) UID() string { return j.req.Uid }

// Request returns the job's own copy of the request. It belongs to the mode.
func (j *Job) Request() *pb.BeginBackupRequest { return j.req }

// Done is closed when the backup has ended and everything is cleaned up.
func (j *Job) Done() <-chan struct{} { return j.done }

// Snapshot returns a copy of the state.
func (j *Job) Snapshot() *pb.Backup {
	j.mu.Lock()
	defer j.mu.Unlock()
	return proto.CloneOf(j.state)
}

// Running says that the backup has not ended.
func (j *Job) Running() bool {
	select {
	case <-j.done:
		return false
	default:
		return true
	}
}

// Fail ends the backup for a reason from outside. Only the first reason counts. After the end it changes nothing.
func (j *Job) Fail(reason *Failure) { j.cancel(reason) }

// GuestEnded tells the backup that the guest has ended.
func (j *Job) GuestEnded(end GuestEnd) {
	j.mu.Lock()
	j.end = end
	j.mu.Unlock()
	j.cancel(guestFailure(end))
	j.endLife()
}

func (j *Job) guestEnd() GuestEnd {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.end
}

// Deliver passes an event of the domain to the backup. It never blocks.
func (j *Job) Deliver(e domain.Event) {
	switch {
	case e.Kind == domain.EventBackupCompleted:
		select { // only the latest event counts
		case <-j.completed:
		default:
		}
		select {
		case j.completed <- e.Err:
		default:
		}
	case e.Kind == domain.EventIOError && e.Paused:
		j.cancel(&pausedError{disk: e.Volume, why: e.Message})
	case e.Kind == domain.EventLifecycle && IsPausedByIOError(e.State, e.Reason):
		j.cancel(&pausedError{})
	}
}

// UpdateState changes the state, and tells whoever follows it.
func (j *Job) UpdateState(change func(*pb.Backup)) {
	j.mu.Lock()
	change(j.state)
	j.mu.Unlock()
	j.cfg.Changed()
}

// Run carries out the backup and returns when it has ended and everything is cleaned up.
func (j *Job) Run() {
	defer j.endLife()
	defer j.cancel(nil)
	err := j.protect(func() error { return j.run(j.ctx) })
	if err != nil {
		failure := j.cleanUp(err)
		j.cfg.Log.Warn("backup failed", "backup", j.req.Name, "uid", j.req.Uid, "failure", failure.Kind.String(), "message", failure.Message)
		j.UpdateState(failure.applyTo)
	} else {
		j.UpdateState(func(b *pb.Backup) { b.Phase = pb.Backup_DONE })
	}
	close(j.done)
	j.cfg.Changed()
}

// protect turns a panic into an error: a bug here must not end the guest.
func (j *Job) protect(f func() error) error {
	err := guard.Call(f)
	var panicked *guard.PanicError
	if errors.As(err, &panicked) {
		j.cfg.Log.Error("backup panicked", "backup", j.req.Name, "uid", j.req.Uid, "panic", panicked.Value, "stack", panicked.Stack)
	}
	return err
}

// Guard calls f, and fails the backup if f panics. What a Mode runs in goroutines goes through it.
func (j *Job) Guard(f func()) {
	err := j.protect(func() error { f(); return nil })
	if err != nil {
		j.Fail(&Failure{Kind: pb.Backup_HYPERVISOR_ERROR, Message: err.Error()})
	}
}

func (j *Job) run(ctx context.Context) error {
	begin, err := j.prepare(ctx)
	if err != nil {
		return err
	}
	if err := j.fixPointInTime(ctx, begin); err != nil {
		return err
	}
	return j.mode.Move(ctx)
}

func (j *Job) prepare(ctx context.Context) (domain.BeginFunc, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	if err := j.endStray(ctx); err != nil {
		return nil, fmt.Errorf("end the job of an earlier backup: %w", err)
	}
	return j.mode.Prepare(ctx)
}

// Query returns what libvirt says about the job.
func (j *Job) Query(ctx context.Context) (domain.JobInfo, error) { return j.watcher.Query(ctx) }

// Completed has an event when libvirt says that a job has ended. The event may be lost, or be a late one of an earlier
// job.
func (j *Job) Completed() <-chan error { return j.completed }

// JobEnded notes that libvirt's job has ended, so that the cleanup of a failed backup does not wait for it.
func (j *Job) JobEnded() { j.progress.ended = true }

// FinishJob ends libvirt's job of a pull backup, which succeeds by being aborted. An error means that it has not succeeded.
func (j *Job) FinishJob(ctx context.Context) error {
	if err := j.watcher.AbortUntilIdle(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	job, err := j.watcher.Query(ctx)
	if cause := context.Cause(ctx); cause != nil { // something else may have ended the job
		return cause
	}
	if err != nil {
		return fmt.Errorf("end backup job: %w", err)
	}
	if err := JobError(job); err != nil {
		return err
	}
	j.progress.ended = true
	// An I/O error may have paused the guest just before the end. Its event comes too late for this job.
	j.untilGuestIsFree(func() error { return j.watcher.FreeGuest(j.life) }, func(err error) {
		j.cfg.Log.Error("the guest may be paused, trying again", "backup", j.req.Name, "uid", j.req.Uid, "error", err)
	})
	return nil
}

// boundedContext returns a context for calls that must not be cut off in the middle. It ends after d, and not with the backup.
func (j *Job) boundedContext(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(j.ctx), d)
}
