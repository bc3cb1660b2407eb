//go:build libvirt_dlopen

package domain

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirt"
)

// Events returns the channel of the domain's events, in libvirt's order. Close closes it. A reader who falls more
// than 256 events behind gets one EventResync in their place.
func (s *Session) Events() <-chan Event { return s.events.out }

// beforeEvent holds back the end of a backup until the target files are closed.
func (s *Session) beforeEvent(e Event) {
	if e.Kind != EventBackupCompleted {
		return
	}
	d, err := s.onlyDomain()
	if err != nil {
		return // no domain, no open file
	}
	awaitCleanup(d)
	_ = d.Free() // fails only for an invalid handle
}

// subscribeEvents registers the callbacks. They run on libvirt's loop, so each only translates and pushes.
func (s *Session) subscribeEvents() error {
	if err := s.conn.RegisterCloseCallback(func(*libvirt.Connect, libvirt.ConnectCloseReason) {
		s.events.push(Event{Kind: EventConnectionClosed})
	}); err != nil {
		return err
	}
	for _, register := range []func() (int, error){
		func() (int, error) { return s.conn.DomainEventLifecycleRegister(nil, s.onLifecycle) },
		func() (int, error) { return s.conn.DomainEventAgentLifecycleRegister(nil, s.onAgent) },
		func() (int, error) { return s.conn.DomainEventJobCompletedRegister(nil, s.onJobCompleted) },
		func() (int, error) { return s.conn.DomainEventIOErrorReasonRegister(nil, s.onIOError) },
		func() (int, error) { return s.conn.DomainEventBlockThresholdRegister(nil, s.onThreshold) },
	} {
		id, err := register()
		if err != nil {
			return err
		}
		s.ids = append(s.ids, id)
	}
	return nil
}

func (s *Session) onLifecycle(_ *libvirt.Connect, _ *libvirt.Domain, e *libvirt.DomainEventLifecycle) {
	out := Event{Kind: EventLifecycle}
	switch e.Event {
	case libvirt.DOMAIN_EVENT_STARTED, libvirt.DOMAIN_EVENT_RESUMED:
		out.State = StateRunning
		if e.Event == libvirt.DOMAIN_EVENT_STARTED &&
			libvirt.DomainEventStartedDetailType(e.Detail) == libvirt.DOMAIN_EVENT_STARTED_MIGRATED {
			out.State, out.Reason = StatePaused, ReasonMigrating // its memory is about to come
		}
	case libvirt.DOMAIN_EVENT_SUSPENDED:
		out.State, out.Reason = StatePaused, suspendedReason(libvirt.DomainEventSuspendedDetailType(e.Detail))
	case libvirt.DOMAIN_EVENT_SHUTDOWN:
		out.State = StateShuttingDown
	case libvirt.DOMAIN_EVENT_CRASHED:
		out.State, out.Reason = StateShuttingDown, ReasonCrashed
	case libvirt.DOMAIN_EVENT_STOPPED:
		out.State, out.Reason = StateShutOff, stoppedReason(libvirt.DomainEventStoppedDetailType(e.Detail))
	default:
		return // defined, undefined and the like: not about the guest
	}
	s.events.push(out)
}

func suspendedReason(detail libvirt.DomainEventSuspendedDetailType) Reason {
	switch detail {
	case libvirt.DOMAIN_EVENT_SUSPENDED_PAUSED:
		return ReasonUser
	case libvirt.DOMAIN_EVENT_SUSPENDED_MIGRATED:
		return ReasonMigrating
	case libvirt.DOMAIN_EVENT_SUSPENDED_API_ERROR:
		return ReasonNotResumed
	case libvirt.DOMAIN_EVENT_SUSPENDED_IOERROR:
		return ReasonIOError
	}
	return ReasonOther
}

func stoppedReason(detail libvirt.DomainEventStoppedDetailType) Reason {
	switch detail {
	case libvirt.DOMAIN_EVENT_STOPPED_SHUTDOWN:
		return ReasonShutdown
	case libvirt.DOMAIN_EVENT_STOPPED_DESTROYED:
		return ReasonDestroyed
	case libvirt.DOMAIN_EVENT_STOPPED_CRASHED:
		return ReasonCrashed
	case libvirt.DOMAIN_EVENT_STOPPED_MIGRATED:
		return ReasonMigrated
	case libvirt.DOMAIN_EVENT_STOPPED_FAILED:
		return ReasonFailed
	}
	return ReasonOther
}

func (s *Session) onAgent(_ *libvirt.Connect, _ *libvirt.Domain, e *libvirt.DomainEventAgentLifecycle) {
	s.events.push(Event{Kind: EventAgent, Connected: e.State == libvirt.CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED})
}

func (s *Session) onJobCompleted(_ *libvirt.Connect, _ *libvirt.Domain, e *libvirt.DomainEventJobCompleted) {
	if e.Info.Operation == libvirt.DOMAIN_JOB_OPERATION_BACKUP {
		s.events.push(Event{Kind: EventBackupCompleted, Err: jobError(&e.Info)})
	}
}

func (s *Session) onIOError(_ *libvirt.Connect, _ *libvirt.Domain, e *libvirt.DomainEventIOErrorReason) {
	volume, _ := stripAlias(e.DevAlias)
	s.events.push(Event{Kind: EventIOError, Volume: volume, Message: e.Reason, Paused: e.Action == libvirt.DOMAIN_EVENT_IO_ERROR_PAUSE})
}

func (s *Session) onThreshold(_ *libvirt.Connect, _ *libvirt.Domain, e *libvirt.DomainEventBlockThreshold) {
	s.events.push(Event{Kind: EventThreshold, Message: e.Dev})
}

// jobError returns why a backup job that ended failed, or nil.
func jobError(info *libvirt.DomainJobInfo) error {
	if info.JobSuccessSet && info.JobSuccess {
		return nil
	}
	words := info.ErrorMessage
	switch {
	case words != "":
	case info.Type == libvirt.DOMAIN_JOB_CANCELLED:
		words = "canceled"
	default:
		words = "libvirt gives no reason"
	}
	return classifyWrite(fmt.Errorf("backup job: %w", errors.New(words)))
}
