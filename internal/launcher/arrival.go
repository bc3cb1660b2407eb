package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/relay"
	"github.com/varvebackup/varve/internal/tracking"
)

const (
	// takeOverTimeout bounds how long the guest that has arrived may take to go on, and takeOverEvery is how often that is
	// tried: a disk may be locked for a moment longer than the source's QEMU lives.
	takeOverTimeout = 20 * time.Second
	takeOverEvery   = 500 * time.Millisecond
)

// errNotArrived: the source says that it has gone, but the guest is not here.
var errNotArrived = errclass.New(errclass.Invalid, "the guest has not arrived")

// arrival is the target's part of a migration. Nothing here opens a disk: libvirt starts a QEMU that waits for the
// source's, and takes the disks over only when the guest goes on.
type arrival struct {
	// start becomes the launcher's start when the guest has been taken over.
	start *start
	// close ends the connections with the source.
	close context.CancelFunc
}

// PrepareMigration implements launcher.proto.
func (l *Launcher) PrepareMigration(
	ctx context.Context, req *pb.PrepareMigrationRequest,
) (*pb.PrepareMigrationResponse, error) {
	id := relay.Identity{UID: req.Uid, Token: req.Token}
	if err := id.Check(); err != nil {
		return nil, grpcError(err)
	}
	if req.Start == nil {
		return nil, status.Error(codes.InvalidArgument, "prepare migration: the start is missing")
	}
	l.operations.Lock()
	defer l.operations.Unlock()
	if known, err := l.knowsMigration(req.Uid, true); known || err != nil {
		return &pb.PrepareMigrationResponse{}, err
	}
	s, err := l.examineStart(req.Start)
	if err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "prepare migration: %v", err)
	}
	select {
	case <-l.connected:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if l.guest == nil {
		return nil, status.Error(codes.FailedPrecondition, "prepare migration: libvirt could not be reached")
	}
	if err := l.listenForSource(id, s); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "prepare migration: %v", err)
	}
	return &pb.PrepareMigrationResponse{}, nil
}

// listenForSource makes the launcher the target of a migration.
func (l *Launcher) listenForSource(id relay.Identity, s *start) error {
	sockets := l.cfg.Paths.migrationSockets()
	if err := os.MkdirAll(l.cfg.Paths.MigrationDir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the migration's sockets: %w", err)
	}
	ctx, cancel := context.WithCancel(l.guestLife)
	listener, err := l.cfg.ListenMigration(ctx)
	if err != nil {
		cancel()
		return fmt.Errorf("listen for the source's launcher: %w", err)
	}
	m := &migration{uid: id.UID, phase: pb.Migration_LISTENING, arrival: &arrival{start: s, close: cancel}}
	begun := false
	l.changeState(func() {
		if begun = l.life.phase == pb.State_IDLE && l.start == nil; begun {
			l.migration = m
		}
	})
	if !begun {
		cancel()
		return errors.Join(errors.New("the launcher has a guest, or its stop was asked for"), listener.Close())
	}
	server := &relay.Server{
		Identity: id, Log: l.cfg.Log,
		Sockets:  map[relay.Stream]string{relay.Libvirt: l.cfg.Paths.LibvirtSocket, relay.QEMU: sockets[relay.QEMU]},
		TakeOver: func(ctx context.Context) error { return l.takeOver(ctx, m) },
	}
	l.work.Go(func() {
		defer cancel()
		if err := server.Serve(ctx, listener); err != nil {
			l.cancelArrival(m, err.Error())
		}
	})
	return nil
}

// examineStart finds out what a start of the guest would find, and changes nothing.
func (l *Launcher) examineStart(req *pb.StartRequest) (*start, error) {
	vmi := &kubevirtv1.VirtualMachineInstance{}
	if err := json.Unmarshal(req.Instance, vmi); err != nil {
		return nil, fmt.Errorf("read the instance: %w", err)
	}
	s := &start{
		done: make(chan struct{}), grace: defaultGrace, disks: map[string]backupjob.Disk{},
		renewed: map[string]domain.Renewed{}, untracked: map[string]string{}, tracked: map[string]domain.Opened{},
	}
	if seconds := vmi.Spec.TerminationGracePeriodSeconds; seconds != nil {
		s.grace = time.Duration(*seconds) * time.Second
	}
	var eligible []string
	if req.ChangedBlockTracking {
		eligible = tracking.EligibleVolumes(&vmi.Spec)
	}
	var errs []error
	for _, v := range vmi.Spec.Volumes {
		i := slices.IndexFunc(req.Disks, func(d *pb.DiskSource) bool { return d.Volume == v.Name })
		if i < 0 {
			return nil, fmt.Errorf("volume %s has no disk source", v.Name)
		}
		if err := l.examineDisk(s, req.Disks[i], slices.Contains(eligible, v.Name)); err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", v.Name, err))
		}
	}
	opts := l.domainOptions(vmi, req, nil)
	for _, file := range []string{opts.KernelPath, opts.InitrdPath} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			errs = append(errs, fmt.Errorf("kernel boot: %w", err))
		}
	}
	return s, errors.Join(errs...)
}

func (l *Launcher) examineDisk(s *start, source *pb.DiskSource, eligible bool) error {
	path := l.cfg.Paths.DiskFile(source.Volume)
	if source.Block {
		path = l.cfg.Paths.DiskDevice(source.Volume)
	}
	size, err := domain.DiskSize(path)
	if err != nil {
		return err
	}
	tracked := eligible && size%sectorBytes == 0
	switch {
	case tracked:
		if _, err := os.Stat(l.cfg.Overlays.Path(source.Volume)); err != nil {
			return fmt.Errorf("its changes are tracked in an overlay that is not here: %w", err)
		}
		s.tracked[source.Volume] = domain.Opened{RawPath: path, Run: source.Run}
	case eligible:
		s.untracked[source.Volume] = cannotTrack(source.Volume, size)
	}
	s.disks[source.Volume] = backupjob.Disk{RawPath: path, VirtualBytes: size, Tracked: tracked}
	return nil
}

// cancelArrival ends a target that has not taken the guest over, and with it the launcher.
func (l *Launcher) cancelArrival(m *migration, reason string) {
	cancelled := false
	l.changeState(func() {
		if cancelled = l.start == nil && !l.life.hasEnded(); cancelled {
			m.phase, m.message = pb.Migration_FAILED, reason
			l.life = l.life.afterEnd(pb.State_REQUESTED_SHUTDOWN, "the guest was not moved here: "+reason)
		}
	})
	if cancelled {
		m.arrival.close()
		l.exitOnce.Do(func() { close(l.exit) })
	}
}

// FinishMigration implements launcher.proto.
func (l *Launcher) FinishMigration(
	ctx context.Context, req *pb.FinishMigrationRequest,
) (*pb.FinishMigrationResponse, error) {
	l.mu.Lock()
	m := l.migration
	l.mu.Unlock()
	if m == nil || m.uid != req.Uid || m.arrival == nil {
		return nil, status.Errorf(codes.NotFound, "the launcher is not the target of the migration with UID %s", req.Uid)
	}
	if err := l.takeOver(ctx, m); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	m.arrival.close()
	return &pb.FinishMigrationResponse{}, nil
}

// takeOver lets the guest that has arrived run. Call it only when it is certain that the source's QEMU is gone. Calling
// it again changes nothing.
func (l *Launcher) takeOver(ctx context.Context, m *migration) error {
	l.operations.Lock()
	defer l.operations.Unlock()
	if taken := l.currentStart(); taken != nil {
		return taken.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeOverTimeout)
	defer cancel()
	info, err := l.guest.Info(ctx)
	switch {
	case errors.Is(err, errclass.NotFound):
		return errNotArrived
	case err != nil:
		return err
	case info.State != domain.StateRunning && (info.State != domain.StatePaused || info.Reason == domain.ReasonMigrating):
		return fmt.Errorf("%w: its state is %s (%s)", errNotArrived, info.State, info.Reason)
	}
	s := m.arrival.start
	begun := false
	l.changeState(func() {
		if begun = l.life.phase == pb.State_IDLE; begun {
			l.start, l.life = s, l.life.afterStartCall()
		}
	})
	if !begun {
		return errors.New("the launcher of the target is being stopped")
	}
	s.err = l.resumeArrived(ctx)
	l.changeState(func() {
		if s.err != nil {
			m.phase, m.message = pb.Migration_FAILED, s.err.Error()
			l.life = l.life.afterEnd(pb.State_CRASHED, fmt.Sprintf("the guest was moved here and could not go on: %v", s.err))
			return
		}
		m.phase = pb.Migration_ENDED
		l.life = l.life.afterStart()
	})
	l.wakeRefresher()
	close(s.done)
	return s.err
}

// resumeArrived resumes the guest, and tries again until ctx ends.
func (l *Launcher) resumeArrived(ctx context.Context) error {
	for {
		err := l.guest.Resume(ctx)
		if err == nil {
			return nil
		}
		l.cfg.Log.Warn("let the guest that has arrived go on, trying again", "error", err)
		timer := l.cfg.Clock.NewTimer(takeOverEvery)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

func (l *Launcher) currentStart() *start {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start
}

// isTarget says that a guest is to come here from another node, so that none may be started.
func (l *Launcher) isTarget() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.migration != nil && l.migration.arrival != nil
}
