//go:build libvirt_dlopen

package domain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/varvebackup/varve/internal/errclass"
)

// How long the agent may take to answer. Each libvirt call may wait twice as long: once to synchronize, once for the command.
const (
	agentInfoTimeout = 3 * time.Second
	agentThawTimeout = 10 * time.Second
)

// agent is what a session knows about the guest agent. The timeout is a setting of the domain, so only one call at a
// time may use the agent.
type agent struct {
	mu     sync.Mutex
	frozen bool
	last   atomic.Pointer[agentAnswer]
}

// agentAnswer is an answer of the agent.
type agentAnswer struct {
	os         *GuestOS
	interfaces []Interface
}

// askAgent returns the agent's answer, or its last one. It does not ask the agent while the guest is frozen (the agent
// would refuse) or while another call uses the agent (a freeze must not wait).
func (a *agent) askAgent(d *libvirt.Domain) agentAnswer {
	if a.mu.TryLock() {
		if !a.frozen {
			if answer, err := askAgent(d); err == nil {
				a.last.Store(&answer)
			}
		}
		a.mu.Unlock()
	}
	if last := a.last.Load(); last != nil {
		return *last
	}
	return agentAnswer{}
}

func askAgent(d *libvirt.Domain) (agentAnswer, error) {
	if err := setAgentTimeout(d, agentInfoTimeout); err != nil {
		return agentAnswer{}, err
	}
	info, err := d.GetGuestInfo(libvirt.DOMAIN_GUEST_INFO_OS|libvirt.DOMAIN_GUEST_INFO_INTERFACES, 0)
	if err != nil {
		return agentAnswer{}, err
	}
	var out agentAnswer
	if os := info.OS; os != nil {
		out.os = &GuestOS{ID: os.ID, Name: os.Name, PrettyName: os.PrettyName, Version: os.Version, KernelRelease: os.KernelRelease}
	}
	for _, i := range info.Interfaces {
		if i.Name == "lo" {
			continue
		}
		found := Interface{GuestName: i.Name, MAC: strings.ToLower(i.Hwaddr), FromAgent: true}
		for _, a := range i.Addrs {
			found.IPs = append(found.IPs, a.Addr)
		}
		out.interfaces = append(out.interfaces, found)
	}
	return out, nil
}

// setAgentTimeout bounds each of the following commands. libvirt counts in whole seconds.
func setAgentTimeout(d *libvirt.Domain, timeout time.Duration) error {
	return d.AgentSetResponseTimeout(wholeSeconds(timeout), 0)
}

func wholeSeconds(timeout time.Duration) int {
	return max(1, int((timeout+time.Second-1)/time.Second))
}

func agentConnected(d *libvirt.Domain) (bool, error) {
	doc, _, err := disksOf(d)
	if err != nil {
		return false, err
	}
	return channelConnected(doc), nil
}

// Freeze asks the agent to flush and freeze all file systems of the guest. It returns once they are frozen, with the
// number that the agent froze. The agent has the timeout, rounded up to seconds, to answer. On any error, or if the
// context has ended meanwhile, Freeze thaws the guest again, as far as its agent answers. ErrAgent: there is no
// agent, or it refused, or it was too slow.
func (s *Session) Freeze(ctx context.Context, timeout time.Duration) (frozen int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("freeze guest: %w", err)
	}
	// Do not abandon this when ctx ends: whoever freezes must still be there to thaw.
	err = s.useAgent("freeze guest", timeout, func(d *libvirt.Domain) (err error) {
		s.agent.frozen = true
		frozen, err = countFileSystems(d, "guest-fsfreeze-freeze", timeout)
		return err
	})
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("freeze guest: %w", ctx.Err())
	}
	if err != nil {
		return 0, errors.Join(err, s.thawAfterFailure())
	}
	return frozen, nil
}

// countFileSystems tells the agent to freeze or to thaw, and returns the number of file systems that the agent
// reports. libvirt's own calls send the same commands, but their Go binding drops the counts.
func countFileSystems(d *libvirt.Domain, command string, timeout time.Duration) (int, error) {
	answer, err := runAgentCommand(d, command, timeout)
	if err != nil {
		return 0, err
	}
	return saysCount(answer)
}

func runAgentCommand(d *libvirt.Domain, command string, timeout time.Duration) (answer string, err error) {
	return d.QemuAgentCommand(`{"execute":"`+command+`"}`, libvirt.DomainQemuAgentCommandTimeout(wholeSeconds(timeout)), 0)
}

// FSFrozen asks the agent whether the guest's file systems are frozen, no matter who froze them. The agent has the
// timeout, rounded up to seconds, to answer. ErrAgent: there is no agent, or it refused, or it was too slow.
func (s *Session) FSFrozen(_ context.Context, timeout time.Duration) (frozen bool, err error) {
	err = s.useAgent("ask whether the guest is frozen", timeout, func(d *libvirt.Domain) error {
		answer, err := runAgentCommand(d, "guest-fsfreeze-status", timeout)
		if err != nil {
			return err
		}
		frozen, err = saysFrozen(answer)
		return err
	})
	return frozen, err
}

// thawAfterFailure thaws a guest that may be frozen. A missing guest or agent is not a second error.
func (s *Session) thawAfterFailure() error {
	_, err := s.Thaw(context.Background())
	if errors.Is(err, ErrAgent) || errors.Is(err, ErrNotRunning) || errors.Is(err, errclass.NotFound) {
		return nil
	}
	return err
}

// Thaw asks the agent to thaw all file systems, and returns how many were frozen. A guest that is not frozen is no
// error: Thaw returns 0. It tries even if ctx has ended, for at most 20 seconds: a guest that stays frozen is the worse outcome.
func (s *Session) Thaw(context.Context) (thawed int, err error) {
	err = s.useAgent("thaw guest", agentThawTimeout, func(d *libvirt.Domain) (err error) {
		thawed, err = countFileSystems(d, "guest-fsfreeze-thaw", agentThawTimeout)
		s.agent.frozen = false
		return err
	})
	return thawed, err
}

// useAgent runs f with the agent's timeout set, while no other call uses the agent.
func (s *Session) useAgent(what string, timeout time.Duration, f func(d *libvirt.Domain) error) error {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	return s.withDomain(context.Background(), what, func(d *libvirt.Domain) error {
		if err := setAgentTimeout(d, timeout); err != nil {
			return err
		}
		return f(d)
	})
}
