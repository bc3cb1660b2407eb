package launcher

import (
	"context"
	"fmt"
	"time"

	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

const (
	// askEvery is how often the guest is asked to shut down: a guest in early boot, and some installers, miss the first request.
	askEvery = 5 * time.Second
	// askTimeout bounds one request.
	askTimeout = 10 * time.Second
	// powerOffTimeout is how long QEMU may take to write what it has and to end after the guest has powered off. libvirt sends it SIGTERM then
	// and nothing after it, so that without a bound a QEMU that hangs would keep its machine shutting down for ever.
	powerOffTimeout = 2 * time.Minute
	// jobStopTimeout bounds how long a backup may hold up the stop that failed it.
	jobStopTimeout = 20 * time.Second
	// destroyTimeout bounds one attempt of libvirt to destroy the domain, and giveUpAfter all of them.
	destroyTimeout = 30 * time.Second
	giveUpAfter    = 2 * time.Minute
	destroyEvery   = 2 * time.Second
	// sigkillAfter is shorter than the time after which libvirt's SIGTERM is followed by SIGKILL, 10 seconds
	// (virProcessKillPainfully). A domain that was destroyed within it was ended by SIGTERM, and closed its disks.
	sigkillAfter = 9 * time.Second
)

// stop is the stop of the guest. It begins with the first call of Stop, or when the guest powers off.
type stop struct {
	// deadline is when the guest is killed, and closing sooner wakes whoever waits for it. The launcher's mutex guards both.
	deadline time.Time
	sooner   chan struct{}
	// slow: destroying took so long that libvirt may have used SIGKILL. finished is closed when slow is final.
	slow     bool
	finished chan struct{}
}

func newStop(deadline time.Time) *stop {
	return &stop{deadline: deadline, sooner: make(chan struct{}), finished: make(chan struct{})}
}

// mayBeDirty says that QEMU may have been killed. It waits until the stop, which the guest's end ends, is finished.
func (s *stop) mayBeDirty() bool {
	<-s.finished
	return s.slow
}

// Stop asks the guest to shut down and kills it after the grace period. It returns at once. A later call can only shorten the wait.
func (l *Launcher) Stop(grace time.Duration) {
	deadline := l.cfg.Clock.Now().Add(grace)
	var begun *stop
	l.changeState(func() {
		l.life = l.life.afterShutdownCall()
		switch {
		case l.stop == nil && !l.life.hasEnded():
			l.stop = newStop(deadline)
			begun = l.stop
		case l.stop != nil && deadline.Before(l.stop.deadline):
			l.stop.deadline = deadline
			close(l.stop.sooner)
			l.stop.sooner = make(chan struct{})
		}
	})
	if begun != nil {
		l.work.Go(func() {
			defer close(begun.finished)
			l.stopGuest(begun)
		})
	}
}

// boundPowerOff sees to it that QEMU ends once the guest has powered off by itself, or that it does not if the guest runs again. Who asked the
// guest to shut down has set a deadline already.
func (l *Launcher) boundPowerOff() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.life.stop || l.life.kill || l.life.hasEnded():
	case l.life.poweredOff && l.stop == nil:
		s := newStop(l.cfg.Clock.Now().Add(powerOffTimeout))
		l.stop = s
		l.work.Go(func() {
			defer close(s.finished)
			l.endGuest(s)
		})
	case !l.life.poweredOff && l.stop != nil:
		close(l.stop.sooner)
		l.stop = nil
	}
}

func (l *Launcher) stopGuest(s *stop) {
	l.mu.Lock()
	begun := l.start
	l.mu.Unlock()
	select {
	case <-begun.done: // a domain that is being created cannot be stopped; the start is bounded
	case <-l.ended:
		return
	}
	l.failJob()
	l.stopMigration()
	l.endGuest(s)
}

// endGuest asks the guest to shut down until it has, and kills it at the deadline.
func (l *Launcher) endGuest(s *stop) {
	for l.isNeeded(s) {
		if left, _ := l.timeLeft(s); left <= 0 {
			l.destroyGuest(s)
			return
		}
		if !l.currentLife().poweredOff {
			l.askToShutDown()
		}
		left, sooner := l.timeLeft(s)
		timer := l.cfg.Clock.NewTimer(max(0, min(left, askEvery)))
		select {
		case <-timer.C():
		case <-sooner:
		case <-l.ended:
		}
		timer.Stop()
	}
}

// isNeeded says that the guest is there, and has not run again after a power-off that nobody asked for.
func (l *Launcher) isNeeded(s *stop) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.life.hasEnded() && l.stop == s
}

func (l *Launcher) timeLeft(s *stop) (time.Duration, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.deadline.Sub(l.cfg.Clock.Now()), s.sooner
}

// failJob first ends a running backup. libvirt would lose it in any case, and here it is cleaned up in order.
func (l *Launcher) failJob() {
	// With the lock, a call that was about to begin a backup has begun it; a later call sees the stop.
	l.operations.Lock()
	job := l.currentJob()
	l.operations.Unlock()
	if job == nil {
		return
	}
	job.Fail(backupjob.Stopped())
	timer := l.cfg.Clock.NewTimer(jobStopTimeout)
	defer timer.Stop()
	select {
	case <-job.Done():
	case <-timer.C():
		l.cfg.Log.Warn("backup does not end, stopping the guest nevertheless", "uid", job.UID())
	case <-l.ended:
	}
}

// askToShutDown asks once. A paused guest cannot react, so it is resumed.
func (l *Launcher) askToShutDown() {
	ctx, cancel := context.WithTimeout(l.guestLife, askTimeout)
	defer cancel()
	if err := l.guest.Resume(ctx); err != nil {
		l.cfg.Log.Debug("resume for shutdown", "error", err)
	}
	if err := l.guest.ShutdownRequest(ctx); err != nil {
		l.cfg.Log.Warn("shutdown request failed, trying again", "error", err)
	}
}

// destroyGuest kills the guest.
func (l *Launcher) destroyGuest(s *stop) {
	l.changeState(func() { l.life = l.life.beforeKill() })
	giveUp := l.cfg.Clock.Now().Add(giveUpAfter)
	begun := l.cfg.Clock.Now()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
		err := l.guest.Destroy(ctx)
		cancel()
		if err == nil {
			s.slow = l.cfg.Clock.Since(begun) > sigkillAfter
		} else {
			s.slow = true
			l.cfg.Log.Warn("destroy failed, trying again", "error", err)
		}
		timer := l.cfg.Clock.NewTimer(destroyEvery)
		select {
		case <-l.ended:
			timer.Stop()
			return
		case <-timer.C():
		}
		// The event may have been lost. The refresher's Info finds the end as well.
		l.wakeRefresher()
		if l.cfg.Clock.Now().After(giveUp) {
			message := fmt.Sprintf("libvirt could not end the guest: %v", err)
			l.changeState(func() { l.life = l.life.afterEnd(pb.State_CRASHED, message) })
			return
		}
	}
}
