// Package push makes one push backup of a running guest: libvirt writes the state of each disk at one moment into a
// qcow2 file on the target volume.
//
// The phases are those of launcher.proto. PREPARING checks, creates the target's files, and touches the guest only at
// its end, when it freezes the guest while the backup begins. COPYING waits for libvirt. FINISHING makes the files
// durable, writes the manifest and gives the directory its final name. A backup ends DONE or FAILED. Neither leaves
// a job, a partial directory or a paused guest behind, and a failed one leaves no checkpoint.
//
// The guest always comes first. It is frozen for a bounded time (package freeze). If the guest pauses because the target is
// out of space, the backup fails and the guest continues. The end of the guest ends the backup.
//
// A Job has one goroutine, Run. Any goroutine may call its other methods.
package push

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

// Guest is what a backup needs of the guest's domain. domain.Session implements it. Its errors wrap the classes of
// package domain. Each call is bounded by its context or by itself.
type Guest interface {
	freeze.Agent
	backupjob.Guest
	PrepareBackup(ctx context.Context, b domain.Backup) (domain.BeginFunc, error)
	DirtyBytes(ctx context.Context, checkpoint string) (map[string]uint64, error)
}

// Images creates and changes the target's qcow2 files.
type Images interface {
	// CreateTarget creates an empty qcow2 file for a disk of virtualBytes.
	CreateTarget(ctx context.Context, path string, virtualBytes int64) error
	// SetBacking sets the file's backing file, relative to the file's directory.
	SetBacking(ctx context.Context, path, relativeBacking string) error
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
	Images  Images
	Freezer *freeze.Freezer
	Clock   clock.WithTicker
	Log     *slog.Logger
	// Disks are the guest's disks, by volume.
	Disks map[string]Disk
	// AgentConnected says whether a guest agent is connected.
	AgentConnected func() bool
	// OpenTarget opens a utility volume by its name.
	OpenTarget func(name string) (*target.Volume, error)
	// Changed is called after each change of the state.
	Changed func()
}

// Job is one backup.
type Job struct {
	cfg Config
	req *pb.BeginBackupRequest

	// ctx ends the work, but not its cleanup. Its cause is a *Failure or a *pausedError.
	ctx    context.Context //nolint:containedctx // the job's life, not a call's
	cancel context.CancelCauseFunc
	done   chan struct{}
	// completed holds the last event about the end of libvirt's job.
	completed chan error
	watcher   *backupjob.Watcher

	mu    sync.Mutex
	state *pb.Backup
	end   GuestEnd

	// progress belongs to Run's goroutine.
	progress progress
}

// progress is how far a backup has come, and so what must be undone.
type progress struct {
	volume *target.Volume
	// partial: the partial directory may exist.
	partial bool
	// begun: libvirt was asked to begin, so that a checkpoint may exist.
	begun bool
	// frozen is the freeze of this backup, or nil.
	frozen *freeze.Frozen
	// copied: libvirt's job has ended.
	copied bool
	// sealBytes is the estimate, in bytes, of what finish reads for hashing.
	sealBytes uint64
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

// New returns a backup that Run will carry out. ctx bounds its work, but not its cleanup. An error says what is wrong with the request.
func New(ctx context.Context, cfg Config, req *pb.BeginBackupRequest) (*Job, error) {
	if err := validateRequest(req, cfg.Disks); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	req = proto.CloneOf(req) // Run makes a disk full in it if the disk's parent is missing
	completed := make(chan error, 1)
	return &Job{
		cfg: cfg, req: req, ctx: ctx, cancel: cancel,
		done: make(chan struct{}), completed: completed,
		watcher: &backupjob.Watcher{Guest: cfg.Guest, Clock: cfg.Clock, Completed: completed},
		state:   &pb.Backup{Uid: req.Uid, Phase: pb.Backup_PREPARING, Volumes: plannedVolumes(req, cfg.Disks)},
	}, nil
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
	case e.Kind == domain.EventLifecycle && backupjob.IsPausedByIOError(e.State, e.Reason):
		j.cancel(&pausedError{})
	}
}

func (j *Job) updateState(change func(*pb.Backup)) {
	j.mu.Lock()
	change(j.state)
	j.mu.Unlock()
	j.cfg.Changed()
}

// Run carries out the backup and returns when it has ended and everything is cleaned up.
func (j *Job) Run() {
	defer j.cancel(nil)
	err := j.runProtected()
	if err != nil {
		failure := j.cleanUp(err)
		j.cfg.Log.Warn("backup failed", "backup", j.req.Name, "uid", j.req.Uid, "failure", failure.Kind.String(), "message", failure.Message)
		j.updateState(failure.applyTo)
	} else {
		j.updateState(func(b *pb.Backup) { b.Phase = pb.Backup_DONE })
	}
	close(j.done)
	j.cfg.Changed()
}

// runProtected turns a panic into a failed backup: a bug here must not end the guest.
func (j *Job) runProtected() (err error) {
	defer func() {
		if p := recover(); p != nil {
			j.cfg.Log.Error("backup panicked", "panic", p, "stack", string(debug.Stack()))
			err = &Failure{Kind: pb.Backup_HYPERVISOR_ERROR, Message: fmt.Sprintf("internal error: %v", p)}
		}
	}()
	return j.run(j.ctx)
}

func (j *Job) run(ctx context.Context) error {
	begin, err := j.prepareTarget(ctx)
	if err != nil {
		return err
	}
	if err := j.fixPointInTime(ctx, begin); err != nil {
		return err
	}
	begun := j.cfg.Clock.Now()
	if err := j.awaitCopy(ctx); err != nil {
		return err
	}
	copied := j.cfg.Clock.Now()
	j.updateState(func(b *pb.Backup) { b.Phase, b.CopyMillis = pb.Backup_FINISHING, copied.Sub(begun).Milliseconds() })
	if err := j.publish(ctx); err != nil {
		return err
	}
	j.updateState(func(b *pb.Backup) { b.SealMillis = j.cfg.Clock.Since(copied).Milliseconds() })
	return nil
}

// boundedContext returns a context for calls that must not be cut off in the middle. It ends after d, and not with the backup.
func (j *Job) boundedContext(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(j.ctx), d)
}
