package launcher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/domain"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/relay"
)

const (
	// migrationEvery is how often a migration's progress is read.
	migrationEvery = time.Second
	// migrationCallTimeout bounds one call to libvirt about a migration.
	migrationCallTimeout = 10 * time.Second
	// breakAfter is how long libvirt may take to cancel a migration. Then its connections are broken, which ends it too.
	breakAfter = 10 * time.Second
	// handOverEvery, handOverTimeout and handOverFor say how long the source tells the target that it may go on.
	handOverEvery   = time.Second
	handOverTimeout = 30 * time.Second
	handOverFor     = time.Minute
	// migrationStopTimeout bounds how long a migration may hold up the stop that cancelled it.
	migrationStopTimeout = 30 * time.Second
)

// migration is a migration of the guest from here, or to here if arrival is set. The launcher's mutex guards all of it.
type migration struct {
	uid     string
	phase   pb.Migration_Phase
	message string
	job     domain.MigrationJob

	// Of the source: cancelReason is why it is to end, and cancelled is closed once that is set. ended is closed when it
	// has ended. left says that the guest is gone from here.
	cancelReason string
	cancelled    chan struct{}
	ended        chan struct{}
	left         bool

	// arrival is set on the target.
	arrival *arrival
}

// isRunning says that the guest is being moved from here.
func (m *migration) isRunning() bool { return m != nil && m.phase == pb.Migration_RUNNING }

// hasCaused says that the guest stands still or is gone because of the migration, which reports its end itself.
func (m *migration) hasCaused(reason domain.Reason) bool {
	return m.isRunning() && (reason == domain.ReasonMigrating || reason == domain.ReasonMigrated)
}

func (m *migration) toProto() *pb.Migration {
	if m == nil {
		return nil
	}
	return &pb.Migration{
		Uid: m.uid, Phase: m.phase, Message: m.message,
		TotalBytes: m.job.TotalBytes, ProcessedBytes: m.job.ProcessedBytes, RemainingBytes: m.job.RemainingBytes,
		DowntimeMillis: m.job.DowntimeMillis,
	}
}

// runningMigration returns the UID of the migration from here that runs, or "".
func (l *Launcher) runningMigration() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.migration.isRunning() {
		return l.migration.uid
	}
	return ""
}

// hasLeft says that the guest is gone from here, so that nothing here can end it any more.
func (l *Launcher) hasLeft() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.migration != nil && l.migration.left
}

// errMigrating is the answer to a call that has to wait for a migration, or nil.
func (l *Launcher) errMigrating(what string) error {
	if uid := l.runningMigration(); uid != "" {
		return status.Errorf(codes.Aborted, "%s: the migration with UID %s runs; ask again when it has ended", what, uid)
	}
	return nil
}

// Migrate implements launcher.proto.
func (l *Launcher) Migrate(ctx context.Context, req *pb.MigrateRequest) (*pb.MigrateResponse, error) {
	id := relay.Identity{UID: req.Uid, Token: req.Token}
	if err := id.Check(); err != nil {
		return nil, grpcError(err)
	}
	l.operations.Lock()
	defer l.operations.Unlock()
	if known, err := l.knowsMigration(req.Uid, false); known || err != nil {
		return &pb.MigrateResponse{}, err
	}
	if err := l.checkpointsFree("migrate"); err != nil {
		return nil, err
	}
	if !l.freezing.TryLock() {
		return nil, status.Error(codes.FailedPrecondition, "migrate: the guest is being frozen")
	}
	defer l.freezing.Unlock()
	if l.isFrozen() {
		return nil, status.Error(codes.FailedPrecondition, "migrate: the guest is frozen")
	}
	m := &migration{uid: req.Uid, phase: pb.Migration_RUNNING, cancelled: make(chan struct{}), ended: make(chan struct{})}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err() // whoever asked may have given it up
	}
	begun := false
	l.changeState(func() {
		if begun = l.life.phase == pb.State_RUNNING && l.life.isReady(); begun {
			l.migration = m
		}
	})
	if !begun {
		return nil, errNotUp("migrate")
	}
	l.work.Go(func() {
		l.runMigration(m, id, req)
		close(m.ended)
		l.resumeStranded()
		l.wakeRefresher()
	})
	return &pb.MigrateResponse{}, nil
}

// knowsMigration says whether this side of the migration has begun here. Another one that has is an error, unless it
// has ended.
func (l *Launcher) knowsMigration(uid string, target bool) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.migration
	switch {
	case m == nil:
		return false, nil
	case m.uid == uid && (m.arrival != nil) == target:
		return true, nil
	case m.uid == uid, m.phase == pb.Migration_LISTENING, m.phase == pb.Migration_RUNNING:
		return false, status.Errorf(codes.FailedPrecondition, "the launcher is busy with the migration with UID %s", m.uid)
	}
	return false, nil
}

// CancelMigration implements launcher.proto.
func (l *Launcher) CancelMigration(
	_ context.Context, req *pb.CancelMigrationRequest,
) (*pb.CancelMigrationResponse, error) {
	reason := req.Reason
	if reason == "" {
		reason = "the migration was cancelled"
	}
	l.mu.Lock()
	m := l.migration
	l.mu.Unlock()
	switch {
	case m == nil || m.uid != req.Uid:
	case m.arrival != nil:
		l.cancelArrival(m, reason)
	default:
		l.cancelMigration(m, reason)
	}
	return &pb.CancelMigrationResponse{}, nil
}

// cancelMigration asks a migration from here to end, if it runs. Its first reason counts.
func (l *Launcher) cancelMigration(m *migration, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.isRunning() && m.cancelReason == "" {
		m.cancelReason = reason
		close(m.cancelled)
	}
}

// stopMigration ends a migration for the stop of its guest.
func (l *Launcher) stopMigration() {
	l.mu.Lock()
	m := l.migration
	l.mu.Unlock()
	if m == nil || m.ended == nil {
		return
	}
	l.cancelMigration(m, "the guest is being stopped")
	timer := l.cfg.Clock.NewTimer(migrationStopTimeout)
	defer timer.Stop()
	select {
	case <-m.ended:
	case <-timer.C():
		l.cfg.Log.Warn("migration does not end, stopping the guest nevertheless", "uid", m.uid)
	case <-l.ended:
	}
}

// runMigration moves the guest. When it returns, the guest goes on here or is gone from here.
func (l *Launcher) runMigration(m *migration, id relay.Identity, req *pb.MigrateRequest) {
	err := l.moveGuest(m, id, req)
	if err == nil {
		l.changeState(func() { m.left = true })
		message := "the guest runs on another node"
		if err := l.handOver(id, req.Address); err != nil {
			message = fmt.Sprintf("the guest was moved to another node, whose launcher has not confirmed that it runs: %v", err)
			l.cfg.Log.Error("hand over", "migration", m.uid, "error", err)
		}
		l.changeState(func() {
			m.phase = pb.Migration_ENDED
			l.life = l.life.afterEnd(pb.State_MIGRATED, message)
		})
		return
	}
	l.cfg.Log.Warn("migration failed", "migration", m.uid, "error", err)
	l.changeState(func() {
		m.phase, m.message = pb.Migration_FAILED, err.Error()
		if m.cancelReason != "" {
			m.message = m.cancelReason
		}
	})
}

// moveGuest returns nil if the guest is gone from here, and an error if it goes on here or has ended.
func (l *Launcher) moveGuest(m *migration, id relay.Identity, req *pb.MigrateRequest) error {
	sockets := l.cfg.Paths.migrationSockets()
	if err := os.MkdirAll(l.cfg.Paths.MigrationDir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the migration's sockets: %w", err)
	}
	source, err := relay.Open(l.guestLife, id, req.Address, sockets, l.cfg.Log)
	if err != nil {
		return fmt.Errorf("carry the migration's connections: %w", err)
	}
	ctx, cancel := context.WithCancel(l.guestLife)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		l.watchMigration(ctx, m, source, req)
	}()
	err = l.guest.Migrate(ctx, domain.Migration{
		Connection: "qemu+unix:///session?socket=" + sockets[relay.Libvirt], Stream: sockets[relay.QEMU],
		BandwidthBytes: req.BandwidthBytes,
	})
	cancel()
	<-watched
	why := source.Err()
	if closed := source.Close(); closed != nil {
		l.cfg.Log.Debug("close the migration's sockets", "error", closed)
	}
	gone, looked := l.findWhetherGone(err)
	switch {
	case gone:
		return nil
	case looked != nil:
		return errors.Join(err, looked)
	}
	switch {
	case err == nil:
		return errors.New("libvirt says that the guest has moved, but it is still here")
	case why != nil:
		return fmt.Errorf("%w; %w", why, err)
	}
	return err
}

// findWhetherGone asks libvirt, until it answers or the guest has ended, what has become of the guest.
func (l *Launcher) findWhetherGone(migrated error) (bool, error) {
	for {
		ctx, cancel := context.WithTimeout(l.guestLife, migrationCallTimeout)
		info, err := l.guest.Info(ctx)
		cancel()
		switch {
		case err == nil:
			return info.State == domain.StateShutOff && info.Reason == domain.ReasonMigrated, nil
		case l.guestLife.Err() != nil:
			return false, errors.New("the guest ended meanwhile")
		}
		l.cfg.Log.Warn("find out what a migration has left, trying again", "migration", migrated, "error", err)
		l.waitUnlessEnded(migrationEvery)
	}
}

// resumeStranded lets a guest go on that a failed migration has left paused, as soon as that works: a disk may be
// locked for as long as the target lives. The target's guest never runs, because it was not told to.
func (l *Launcher) resumeStranded() {
	for !l.currentLife().hasEnded() {
		goesOn, err := l.tryResumeStranded()
		if goesOn {
			return
		}
		l.cfg.Log.Warn("let the guest go on after a failed migration, trying again", "error", err)
		l.waitUnlessEnded(migrationEvery)
	}
}

// tryResumeStranded says whether the guest is not, or no longer, paused by a migration.
func (l *Launcher) tryResumeStranded() (bool, error) {
	ctx, cancel := context.WithTimeout(l.guestLife, migrationCallTimeout)
	defer cancel()
	info, err := l.guest.Info(ctx)
	if err == nil && info.State == domain.StatePaused && (info.Reason == domain.ReasonMigrating ||
		info.Reason == domain.ReasonNotResumed) {
		err = l.guest.Resume(ctx)
	}
	return err == nil, err
}

// waitUnlessEnded waits for this long, or until the guest has ended.
func (l *Launcher) waitUnlessEnded(d time.Duration) {
	timer := l.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-l.ended:
	}
}

// handOver tells the target that the guest is gone from here. Until then the target's guest stands still.
func (l *Launcher) handOver(id relay.Identity, address string) error {
	giveUp := l.cfg.Clock.Now().Add(handOverFor)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), handOverTimeout)
		err := id.HandOver(ctx, address)
		cancel()
		if err == nil || l.cfg.Clock.Now().After(giveUp) {
			return err
		}
		l.cfg.Log.Warn("hand the guest over, trying again", "migration", id.UID, "error", err)
		timer := l.cfg.Clock.NewTimer(handOverEvery)
		<-timer.C()
	}
}

// watchMigration publishes the progress until ctx ends, and cancels a migration that is to end or that does not get on.
func (l *Launcher) watchMigration(ctx context.Context, m *migration, source *relay.Source, req *pb.MigrateRequest) {
	ticker := l.cfg.Clock.NewTicker(migrationEvery)
	defer ticker.Stop()
	pace := newPace(l.cfg.Clock.Now(), req)
	cancelled := m.cancelled
	var breakAt time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		case <-cancelled:
			cancelled = nil
			breakAt = l.cfg.Clock.Now().Add(breakAfter)
		}
		if cancelled != nil {
			if late := pace.whyLate(l.cfg.Clock.Now(), l.readMigration(ctx, m)); late != "" {
				l.cancelMigration(m, late)
			}
			continue
		}
		if l.cfg.Clock.Now().After(breakAt) {
			if err := source.Close(); err != nil {
				l.cfg.Log.Debug("break the migration's connections", "error", err)
			}
		}
		call, cancel := context.WithTimeout(ctx, migrationCallTimeout)
		if err := l.guest.AbortMigration(call); err != nil && ctx.Err() == nil {
			l.cfg.Log.Warn("cancel the migration, trying again", "migration", m.uid, "error", err)
		}
		cancel()
	}
}

// readMigration publishes and returns the progress. Without an answer it returns the last one.
func (l *Launcher) readMigration(ctx context.Context, m *migration) domain.MigrationJob {
	ctx, cancel := context.WithTimeout(ctx, migrationCallTimeout)
	defer cancel()
	job, err := l.guest.MigrationJob(ctx)
	if err == nil && job.Active {
		l.changeState(func() { m.job = job })
		return job
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return m.job
}

// pace says when a migration takes too long.
type pace struct {
	begun, lastProgress  time.Time
	least                uint64
	progress, completion time.Duration
}

func newPace(now time.Time, req *pb.MigrateRequest) *pace {
	return &pace{
		begun: now, lastProgress: now, least: math.MaxUint64,
		progress: boundedSeconds(req.ProgressTimeoutSeconds), completion: boundedSeconds(req.CompletionTimeoutSeconds),
	}
}

func boundedSeconds(n int64) time.Duration {
	return time.Duration(max(0, min(n, math.MaxInt64/int64(time.Second)))) * time.Second
}

// whyLate returns why the migration is to be cancelled, or "".
func (p *pace) whyLate(now time.Time, job domain.MigrationJob) string {
	if job.Active && job.RemainingBytes < p.least {
		p.least, p.lastProgress = job.RemainingBytes, now
	}
	switch {
	case p.progress > 0 && now.Sub(p.lastProgress) >= p.progress:
		return fmt.Sprintf("cancelled: for %v what is left of the guest's memory has not become less; the guest dirties "+
			"it faster than it is sent. Migrate when the guest is less busy", p.progress)
	case p.completion > 0 && now.Sub(p.begun) >= p.completion:
		return fmt.Sprintf("cancelled: it has not completed in %v. Migrate when the guest or the network is less busy",
			p.completion)
	}
	return ""
}

// migrationSockets are the unix sockets that the source listens at. QEMU's is at the same path on the target.
func (p Paths) migrationSockets() map[relay.Stream]string {
	return map[relay.Stream]string{
		relay.Libvirt: filepath.Join(p.MigrationDir, "libvirt.sock"), relay.QEMU: filepath.Join(p.MigrationDir, "qemu.sock"),
	}
}
