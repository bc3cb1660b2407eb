package launcher

import (
	"fmt"

	"github.com/varvebackup/varve/internal/domain"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// life is the state of the guest between its start and its end: a value, and functions from one value to the next.
// ENDED is final: the first cause of the end counts.
type life struct {
	phase   pb.State_Phase
	end     pb.State_End
	message string
	// stop: Shutdown was called. kill: the guest is being destroyed. poweredOff: the guest has powered off, and QEMU is about to end.
	stop, kill, poweredOff bool
	// panicked: the guest's kernel reported a panic before the guest was gone.
	panicked bool
	// trouble describes the last I/O error, for the message of a pause.
	trouble string
}

func (l life) hasEnded() bool { return l.phase == pb.State_ENDED }

// isUp says that the guest exists: it is running, paused or shutting down.
func (l life) isUp() bool {
	return l.phase == pb.State_RUNNING || l.phase == pb.State_PAUSED || l.phase == pb.State_SHUTTING_DOWN
}

func (l life) afterEnd(end pb.State_End, message string) life {
	if l.hasEnded() {
		return l
	}
	l.phase, l.end, l.message = pb.State_ENDED, end, message
	return l
}

// afterStartCall records that Start was called.
func (l life) afterStartCall() life {
	if l.phase == pb.State_IDLE {
		l.phase = pb.State_STARTING
	}
	return l
}

// startFailed records that the guest never started.
func (l life) startFailed(err error) life { return l.afterEnd(pb.State_START_FAILED, err.Error()) }

// afterStart records that libvirt has created the domain.
func (l life) afterStart() life {
	if l.phase == pb.State_STARTING {
		l.phase = pb.State_RUNNING
		if l.stop {
			l.phase = pb.State_SHUTTING_DOWN
		}
	}
	return l
}

// afterShutdownCall records that Shutdown was called. A guest that has not been started yet ends here.
func (l life) afterShutdownCall() life {
	l.stop = true
	switch l.phase {
	case pb.State_IDLE:
		return l.afterEnd(pb.State_REQUESTED_SHUTDOWN, "stopped before the guest was started")
	case pb.State_RUNNING, pb.State_PAUSED:
		l.phase, l.message = pb.State_SHUTTING_DOWN, ""
	case pb.State_STARTING, pb.State_SHUTTING_DOWN, pb.State_ENDED:
		// A guest that is starting is stopped once it runs (see started). The others need nothing.
	}
	return l
}

// beforeKill records that the guest is about to be destroyed.
func (l life) beforeKill() life {
	l.kill = true
	return l
}

// afterLoss records that libvirt is gone, and the guest with it.
func (l life) afterLoss(message string) life {
	if l.phase == pb.State_IDLE || l.phase == pb.State_STARTING {
		return l.afterEnd(pb.State_START_FAILED, message)
	}
	return l.afterEnd(pb.State_CRASHED, message)
}

// ioError records an I/O error, which a pause may follow.
func (l life) ioError(volume, why string) life {
	l.trouble = fmt.Sprintf("I/O error on disk %s", volume)
	if why != "" {
		l.trouble += ": " + why
	}
	return l
}

// afterReport records the state that libvirt reports. It ignores reports until the guest is started: a domain that is
// being created pauses and, if that fails, shuts off, and Start itself reports the failure.
func (l life) afterReport(state domain.State, reason domain.Reason) life {
	if !l.isUp() {
		return l
	}
	switch state {
	case domain.StateRunning:
		if l.phase == pb.State_PAUSED {
			l.phase, l.message = pb.State_RUNNING, ""
		}
	case domain.StatePaused:
		if l.phase == pb.State_RUNNING || l.phase == pb.State_PAUSED {
			l.phase, l.message = pb.State_PAUSED, l.pauseMessage(reason)
		}
	case domain.StateShuttingDown:
		l.phase, l.message, l.poweredOff = pb.State_SHUTTING_DOWN, "", true
		l.panicked = l.panicked || reason == domain.ReasonCrashed
	case domain.StateShutOff:
		return l.afterEnd(l.endOf(reason))
	}
	return l
}

// afterRunEvent records the event that the guest runs. It says more than a report, which may be older than what followed it: after a
// power-off it is libvirt's own reboot, in which the same QEMU goes on.
func (l life) afterRunEvent() life {
	if l.phase == pb.State_SHUTTING_DOWN && l.poweredOff && !l.panicked {
		l.poweredOff = false
		if !l.stop {
			l.phase = pb.State_RUNNING
		}
	}
	return l.afterReport(domain.StateRunning, "")
}

func (l life) pauseMessage(reason domain.Reason) string {
	switch reason {
	case domain.ReasonIOError:
		if l.trouble != "" {
			return "paused: " + l.trouble
		}
		return "paused: I/O error on a disk"
	case domain.ReasonUser:
		return "paused by a user of libvirt"
	default:
		return "paused: " + string(reason)
	}
}

func (l life) endOf(reason domain.Reason) (pb.State_End, string) {
	switch {
	case l.panicked:
		return pb.State_CRASHED, "the guest's kernel panicked"
	case reason == domain.ReasonCrashed || reason == domain.ReasonFailed:
		return pb.State_CRASHED, "QEMU ended without being asked to"
	case l.kill && reason == domain.ReasonDestroyed && l.poweredOff && !l.stop:
		return pb.State_GUEST_SHUTDOWN, "the guest shut itself down, and QEMU, which did not end, was killed"
	case l.kill && reason == domain.ReasonDestroyed:
		return pb.State_KILLED, "the guest did not shut down in time and was killed"
	case l.stop && reason == domain.ReasonShutdown:
		return pb.State_REQUESTED_SHUTDOWN, "the guest shut down as it was asked to"
	case reason == domain.ReasonShutdown:
		return pb.State_GUEST_SHUTDOWN, "the guest shut itself down"
	}
	return pb.State_CRASHED, fmt.Sprintf("the domain was ended from outside (%s)", reason)
}

// endedClean says that QEMU closed its disks by itself, as far as libvirt knows.
func (l life) endedClean() bool {
	return l.end == pb.State_GUEST_SHUTDOWN || l.end == pb.State_REQUESTED_SHUTDOWN || l.end == pb.State_KILLED
}

// exitCode returns the launcher's exit code.
func (l life) exitCode() int {
	if l.end == pb.State_CRASHED || l.end == pb.State_START_FAILED || l.end == pb.State_END_UNSPECIFIED {
		return 1
	}
	return 0
}
