package launcher

import (
	"context"
	"errors"
	"time"

	"github.com/varvebackup/varve/internal/domain"
)

const (
	// refreshEvery is how often data without events is read: addresses and operating system from the guest agent.
	refreshEvery = 10 * time.Second
	// refreshTimeout bounds one read, which may wait for the guest agent.
	refreshTimeout = 20 * time.Second
)

// followEvents handles events until ctx ends or the channel is closed.
func (l *Launcher) followEvents(ctx context.Context, events <-chan domain.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-events:
			if !open {
				return
			}
			l.handleEvent(e)
		}
	}
}

func (l *Launcher) handleEvent(e domain.Event) {
	l.cfg.Log.Debug("event", "kind", e.Kind, "state", e.State, "reason", e.Reason, "volume", e.Volume, "message", e.Message, "error", e.Err)
	switch e.Kind {
	case domain.EventLifecycle:
		l.changeState(func() {
			switch {
			case l.migration.hasCaused(e.Reason):
			case e.State == domain.StateRunning:
				l.life = l.life.afterRunEvent()
			default:
				l.life = l.life.afterReport(e.State, e.Reason)
			}
		})
		l.boundPowerOff()
	case domain.EventIOError:
		l.changeState(func() { l.life = l.life.ioError(e.Volume, e.Message) })
	case domain.EventAgent:
		l.changeState(func() { l.info.AgentConnected = e.Connected })
	case domain.EventConnectionClosed:
		l.work.Go(func() { l.libvirtLost("the connection to libvirtd was lost") })
	case domain.EventResync:
		l.work.Go(l.resyncPaused)
	case domain.EventBackupCompleted, domain.EventThreshold:
		// These concern the backup only.
	}
	if job := l.currentJob(); job != nil && job.Running() {
		job.Deliver(e)
	}
	l.wakeRefresher()
}

// resyncPaused tells a backup what a lost event would have told it: that its guest is paused. (The backup finds the end of
// its job itself, and the refresher finds the rest.)
func (l *Launcher) resyncPaused() {
	job := l.currentJob()
	if job == nil || !job.Running() {
		return
	}
	ctx, cancel := context.WithTimeout(l.guestLife, refreshTimeout)
	defer cancel()
	info, err := l.guest.Info(ctx)
	if err != nil {
		l.cfg.Log.Debug("read domain", "error", err)
		return
	}
	job.Deliver(domain.Event{Kind: domain.EventLifecycle, State: info.State, Reason: info.Reason})
}

func (l *Launcher) wakeRefresher() {
	select {
	case l.refresh <- struct{}{}:
	default:
	}
}

// refreshLoop reads the state from libvirt and the agent again: after each event and every 10 seconds.
func (l *Launcher) refreshLoop(ctx context.Context) {
	ticker := l.cfg.Clock.NewTicker(refreshEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ended:
			return
		case <-l.refresh:
		case <-ticker.C():
		}
		if l.currentLife().isUp() {
			l.readAgain(ctx)
		}
	}
}

// readAgain also finds the domain's state, which a lost event would have reported.
func (l *Launcher) readAgain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	info, err := l.guest.Info(ctx)
	if err != nil {
		// A domain that is shutting down has no information. An event reports its end.
		l.cfg.Log.Debug("read domain", "error", err)
		return
	}
	checkpoints, stray, err := l.guest.Checkpoints(ctx)
	if err != nil && !errors.Is(err, domain.ErrNotRunning) {
		l.cfg.Log.Debug("read checkpoints", "error", err)
	}
	known := err == nil
	l.changeState(func() {
		if known {
			l.checkpoints, l.strayBitmaps = checkpoints, stray
		} else {
			// A reader who sees the disks expects to see their checkpoints, too.
			info.Disks = l.info.Disks
		}
		if info.State != domain.StateShutOff {
			l.info = info
		}
		if !l.migration.hasCaused(info.Reason) {
			l.life = l.life.afterReport(info.State, info.Reason)
		}
	})
	l.boundPowerOff()
}

// watchLibvirt ends the guest when libvirtd has died.
func (l *Launcher) watchLibvirt(ctx context.Context) {
	select {
	case <-l.cfg.LibvirtGone:
		l.libvirtLost("libvirtd died")
	case <-l.ended:
	case <-ctx.Done():
	}
}

// libvirtLost ends QEMU and with it the guest, so that no guest runs without control.
func (l *Launcher) libvirtLost(message string) {
	if l.currentLife().hasEnded() || l.hasLeft() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), emulatorGrace)
	defer cancel()
	if err := l.cfg.EndEmulators(ctx); err != nil {
		message += "; " + err.Error()
	}
	l.changeState(func() { l.life = l.life.afterLoss(message) })
}
