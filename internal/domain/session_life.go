//go:build libvirt_dlopen

package domain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/varvebackup/varve/internal/errclass"
)

// Start defines the domain of this document and starts it. A domain that is already running is not changed.
func (s *Session) Start(ctx context.Context, xml string) error {
	_, err := callWithin(ctx, func() (struct{}, error) { return struct{}{}, s.startDomain(xml) })
	if err != nil {
		return fmt.Errorf("start domain: %w", err)
	}
	return nil
}

func (s *Session) startDomain(xml string) error {
	var doc libvirtxml.Domain
	if err := doc.Unmarshal(xml); err != nil {
		return fmt.Errorf("%w: %w", errclass.Invalid, err)
	}
	d, err := s.conn.LookupDomainByName(doc.Name)
	if err == nil {
		active, err := d.IsActive()
		if err = errors.Join(err, d.Free()); err != nil || active {
			return err
		}
	} else if errorNumber(err) != libvirt.ERR_NO_DOMAIN {
		return err
	}
	d, err = s.conn.DomainDefineXML(xml)
	if err != nil {
		return err
	}
	return errors.Join(d.Create(), d.Free())
}

// agentShutdownWait is how long ShutdownRequest waits for the agent's answer. An agent that obeys does not answer at
// all; libvirt takes the end of the guest as the answer.
const agentShutdownWait = 2 * time.Second

// ShutdownRequest asks the guest to power off: with the power button, and through the agent if it is connected. It
// does not wait for the guest to obey; the lifecycle event reports that.
func (s *Session) ShutdownRequest(ctx context.Context) error {
	button := s.withDomain(ctx, "press the power button", func(d *libvirt.Domain) error {
		return d.ShutdownFlags(libvirt.DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
	})
	if errors.Is(button, errclass.NotFound) || errors.Is(button, ErrNotRunning) {
		return nil
	}
	connected, err := queryDomain(ctx, s, "look for the guest agent", agentConnected)
	if err != nil || !connected {
		return errors.Join(button, err)
	}
	bounded, cancel := context.WithTimeout(ctx, agentShutdownWait)
	defer cancel()
	asked := s.withDomain(bounded, "shut down through the guest agent", func(d *libvirt.Domain) error {
		return d.ShutdownFlags(libvirt.DOMAIN_SHUTDOWN_GUEST_AGENT)
	})
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("shut down: %w", ctx.Err())
	case button == nil || asked == nil || errors.Is(asked, context.DeadlineExceeded):
		return nil // one way is enough
	}
	return errors.Join(button, asked)
}

// Destroy ends QEMU. libvirt sends SIGTERM, on which QEMU closes the disks and saves the bitmaps, and SIGKILL only if QEMU
// has not exited after 10 seconds (virProcessKillPainfully). A domain that is not running is no error.
func (s *Session) Destroy(ctx context.Context) error {
	err := s.withDomain(ctx, "destroy domain", func(d *libvirt.Domain) error {
		return d.DestroyFlags(libvirt.DOMAIN_DESTROY_DEFAULT)
	})
	if errors.Is(err, errclass.NotFound) || errors.Is(err, ErrNotRunning) {
		return nil
	}
	return err
}

// Resume resumes a paused guest. A running guest is no error.
func (s *Session) Resume(ctx context.Context) error {
	return s.withDomain(ctx, "resume domain", func(d *libvirt.Domain) error {
		state, _, err := d.GetState()
		if err != nil || state == libvirt.DOMAIN_RUNNING {
			return err
		}
		return d.Resume()
	})
}

// Info returns the state of the domain. errclass.NotFound: there is no domain. What only the agent knows is as old as its
// last answer.
func (s *Session) Info(ctx context.Context) (Info, error) {
	return queryDomain(ctx, s, "domain info", s.domainInfo)
}

func (s *Session) domainInfo(d *libvirt.Domain) (Info, error) {
	state, detail, err := d.GetState()
	if err != nil {
		return Info{}, err
	}
	doc, disks, err := disksOf(d)
	if err != nil {
		return Info{}, err
	}
	var out Info
	out.State, out.Reason = stateOf(state, detail)
	for _, disk := range disks {
		block, err := d.GetBlockInfo(disk.Target, 0)
		if err != nil {
			return Info{}, fmt.Errorf("size of %s: %w", describeDevice(disk.Volume, disk.Target), err)
		}
		out.Disks = append(out.Disks, DiskInfo{Volume: disk.Volume, Target: disk.Target, VirtualBytes: block.Capacity, Tracked: disk.Tracked})
	}
	out.Interfaces = interfacesOf(doc)
	out.AgentConnected = out.State != StateShutOff && channelConnected(doc)
	if out.AgentConnected {
		said := s.agent.askAgent(d)
		out.GuestOS = said.os
		out.Interfaces = mergeInterfaces(out.Interfaces, said.interfaces)
	}
	return out, nil
}

// stateOf translates libvirt's state and the detail that goes with it.
func stateOf(state libvirt.DomainState, detail int) (State, Reason) {
	switch state {
	case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED:
		return StateRunning, ""
	case libvirt.DOMAIN_SHUTDOWN:
		return StateShuttingDown, ""
	case libvirt.DOMAIN_CRASHED:
		return StateShutOff, ReasonCrashed
	case libvirt.DOMAIN_SHUTOFF:
		return StateShutOff, shutoffReason(libvirt.DomainShutoffReason(detail))
	}
	switch libvirt.DomainPausedReason(detail) {
	case libvirt.DOMAIN_PAUSED_IOERROR:
		return StatePaused, ReasonIOError
	case libvirt.DOMAIN_PAUSED_USER:
		return StatePaused, ReasonUser
	case libvirt.DOMAIN_PAUSED_MIGRATION:
		return StatePaused, ReasonMigrating
	case libvirt.DOMAIN_PAUSED_API_ERROR:
		return StatePaused, ReasonNotResumed
	case libvirt.DOMAIN_PAUSED_CRASHED:
		return StatePaused, ReasonCrashed
	}
	return StatePaused, ReasonOther
}

func shutoffReason(reason libvirt.DomainShutoffReason) Reason {
	switch reason {
	case libvirt.DOMAIN_SHUTOFF_SHUTDOWN:
		return ReasonShutdown
	case libvirt.DOMAIN_SHUTOFF_DESTROYED:
		return ReasonDestroyed
	case libvirt.DOMAIN_SHUTOFF_CRASHED:
		return ReasonCrashed
	case libvirt.DOMAIN_SHUTOFF_MIGRATED:
		return ReasonMigrated
	case libvirt.DOMAIN_SHUTOFF_FAILED:
		return ReasonFailed
	}
	return ReasonOther
}
