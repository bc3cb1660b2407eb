package launcher

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/pull"
	"github.com/varvebackup/varve/internal/launcher/push"
)

// checkpointsTimeout bounds one call that changes checkpoints, because a stop waits for it.
const checkpointsTimeout = time.Minute

// errNotUp is the answer to a call that needs a guest that is running and not being stopped.
func errNotUp(what string) error {
	return status.Errorf(codes.FailedPrecondition, "%s: the guest does not run or is being stopped", what)
}

// isReady says that backups can begin and checkpoints can be changed.
func (l life) isReady() bool { return l.isUp() && !l.stop && l.phase != pb.State_SHUTTING_DOWN }

// BeginBackup implements launcher.proto.
func (l *Launcher) BeginBackup(_ context.Context, req *pb.BeginBackupRequest) (*pb.Backup, error) {
	l.operations.Lock()
	defer l.operations.Unlock()
	if job := l.currentJob(); job != nil {
		if job.UID() == req.Uid {
			return job.Snapshot(), nil
		}
		if job.Running() {
			return nil, status.Errorf(codes.AlreadyExists, "the backup with UID %s runs", job.UID())
		}
	}
	if !l.currentLife().isReady() {
		return nil, errNotUp("begin backup")
	}
	if err := l.errMigrating("begin backup"); err != nil {
		return nil, err
	}
	// The job outlives this call. It ends with the guest, with a failure or with success.
	job, pulled, err := l.newJob(context.Background(), req)
	if err != nil {
		return nil, grpcError(err)
	}
	l.changeState(func() { l.job, l.pull = job, pulled })
	l.work.Go(func() {
		job.Run()
		l.wakeRefresher() // a checkpoint was created, or deleted again
	})
	// The guest may have ended, or its stop begun, since the check above.
	if now := l.currentLife(); now.hasEnded() {
		job.GuestEnded(guestEnd(now))
	}
	return job.Snapshot(), nil
}

// newJob also returns a pull backup as what it is.
func (l *Launcher) newJob(ctx context.Context, req *pb.BeginBackupRequest) (*backupjob.Job, *pull.Job, error) {
	common := l.jobConfig()
	if !req.Pull {
		job, err := push.New(ctx, push.Config{Config: common, Images: l.cfg.Images, OpenTarget: l.cfg.OpenTarget}, req)
		return job, nil, err
	}
	pulled, err := pull.New(ctx, pull.Config{
		Config: common, Images: l.cfg.Images, OpenTarget: l.cfg.OpenTarget,
		Socket: l.cfg.Paths.NBDSocket, OpenVolume: pull.OpenNBD,
	}, req)
	if err != nil {
		return nil, nil, err
	}
	return pulled.Job, pulled, nil
}

func (l *Launcher) jobConfig() backupjob.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	return backupjob.Config{
		Guest: l.guest, Freezer: l.freezer, Clock: l.cfg.Clock, Log: l.cfg.Log,
		Disks:          l.start.disks,
		AgentConnected: l.agentConnected,
		Changed:        func() { l.changeState(func() {}) },
	}
}

func (l *Launcher) agentConnected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.info.AgentConnected
}

// AbortBackup implements launcher.proto.
func (l *Launcher) AbortBackup(_ context.Context, req *pb.AbortBackupRequest) (*pb.AbortBackupResponse, error) {
	if job := l.currentJob(); job != nil && job.UID() == req.Uid {
		job.Fail(backupjob.Aborted())
	}
	return &pb.AbortBackupResponse{}, nil
}

// pulledBackup returns the pull backup with this UID, or NOT_FOUND.
func (l *Launcher) pulledBackup(uid string) (*pull.Job, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pull == nil || l.pull.UID() != uid {
		return nil, status.Errorf(codes.NotFound, "no pull backup has the UID %s", uid)
	}
	return l.pull, nil
}

// ConnectBackup implements launcher.proto.
func (l *Launcher) ConnectBackup(_ context.Context, req *pb.ConnectBackupRequest) (*pb.ConnectBackupResponse, error) {
	pulled, err := l.pulledBackup(req.Uid)
	if err != nil {
		return nil, err
	}
	end := pull.FarEnd{Volume: req.Volume, Address: req.Address, ServerName: req.ServerName, Authorities: req.Authorities, Token: req.Token}
	if err := pulled.Connect(end); err != nil {
		return nil, grpcError(err)
	}
	return &pb.ConnectBackupResponse{}, nil
}

// FinishBackup implements launcher.proto.
func (l *Launcher) FinishBackup(_ context.Context, req *pb.FinishBackupRequest) (*pb.FinishBackupResponse, error) {
	pulled, err := l.pulledBackup(req.Uid)
	if err != nil {
		return nil, err
	}
	if err := pulled.Finish(); err != nil {
		return nil, grpcError(err)
	}
	return &pb.FinishBackupResponse{}, nil
}

// ForgetBackup implements launcher.proto. It does not forget a running backup: FAILED_PRECONDITION.
func (l *Launcher) ForgetBackup(_ context.Context, req *pb.ForgetBackupRequest) (*pb.ForgetBackupResponse, error) {
	l.operations.Lock()
	defer l.operations.Unlock()
	job := l.currentJob()
	switch {
	case job == nil || job.UID() != req.Uid:
	case job.Running():
		return nil, status.Error(codes.FailedPrecondition, "the backup runs: abort it first")
	default:
		l.changeState(func() { l.job, l.pull = nil, nil })
	}
	return &pb.ForgetBackupResponse{}, nil
}

// RedefineCheckpoints implements launcher.proto. While a backup runs: FAILED_PRECONDITION.
func (l *Launcher) RedefineCheckpoints(ctx context.Context, req *pb.RedefineCheckpointsRequest) (*pb.RedefineCheckpointsResponse, error) {
	l.operations.Lock()
	defer l.operations.Unlock()
	if err := l.checkpointsFree("redefine checkpoints"); err != nil {
		return nil, err
	}
	defer l.wakeRefresher()
	ctx, cancel := context.WithTimeout(ctx, checkpointsTimeout)
	defer cancel()
	out := &pb.RedefineCheckpointsResponse{}
	for _, c := range req.Checkpoints {
		valid, lost, err := l.guest.Redefine(ctx, domain.Checkpoint{Name: c.Name, CreationTime: c.CreationTime.AsTime(), Volumes: c.Volumes})
		if err != nil {
			return nil, grpcError(err)
		}
		out.Results = append(out.Results, &pb.RedefineCheckpointsResponse_Result{Name: c.Name, Valid: valid, Lost: lost})
	}
	return out, nil
}

// DeleteCheckpoints implements launcher.proto. While a backup runs: FAILED_PRECONDITION.
func (l *Launcher) DeleteCheckpoints(ctx context.Context, req *pb.DeleteCheckpointsRequest) (*pb.DeleteCheckpointsResponse, error) {
	l.operations.Lock()
	defer l.operations.Unlock()
	if err := l.checkpointsFree("delete checkpoints"); err != nil {
		return nil, err
	}
	defer l.wakeRefresher()
	ctx, cancel := context.WithTimeout(ctx, checkpointsTimeout)
	defer cancel()
	for _, name := range req.Names {
		if err := l.guest.DeleteCheckpoint(ctx, name); err != nil {
			return nil, grpcError(err)
		}
	}
	return &pb.DeleteCheckpointsResponse{}, nil
}

// checkpointsFree returns an error if checkpoints must not be changed now.
func (l *Launcher) checkpointsFree(what string) error {
	if !l.currentLife().isReady() {
		return errNotUp(what)
	}
	if err := l.errMigrating(what); err != nil {
		return err
	}
	if job := l.currentJob(); job != nil && job.Running() {
		return status.Errorf(codes.FailedPrecondition, "%s: the backup with UID %s runs", what, job.UID())
	}
	return nil
}
