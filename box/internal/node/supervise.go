package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/atomicfile"
	"github.com/varvebackup/varve/box/internal/layout"
)

const (
	backoffFirst = 200 * time.Millisecond
	backoffMost  = 5 * time.Second
	// A service that ran this long has recovered: its next restart starts with the first backoff again.
	backoffReset = 20 * time.Second
)

// Service is one program that a node keeps running.
type Service struct {
	Name string
	Args []string // the program's path comes first
	// Needs lists addresses ("tcp:HOST:PORT", "unix:PATH") that must accept a connection before the program is started.
	Needs []string
}

// ServiceStatus is the entry of one service in Status files.
type ServiceStatus struct {
	PID      int       `json:"pid"` // in the node's PID namespace; 0 while it is not running
	Started  time.Time `json:"started"`
	Restarts int       `json:"restarts"`
	LastExit string    `json:"lastExit,omitempty"`
	Killed   bool      `json:"killed,omitempty"` // by SIGKILL: something else ended the previous run
	// LastLife is how long the previous run lasted.
	LastLife time.Duration `json:"lastLifeNanos,omitempty"`
}

// Supervisor runs a node's services as process 1 of its PID namespace. It restarts them when they end, and reaps
// every orphan of the node. After each change it writes its state to the node's Status file.
type Supervisor struct {
	layout layout.Node
	log    *slog.Logger

	mu     sync.Mutex // held from fork to registration, so that the reaper never meets an unknown child of ours
	exits  map[int]chan syscall.WaitStatus
	status map[string]ServiceStatus
}

// NewSupervisor returns the supervisor of the node l. The caller is process 1.
func NewSupervisor(l layout.Node, log *slog.Logger) *Supervisor {
	return &Supervisor{
		layout: l, log: log,
		exits: map[int]chan syscall.WaitStatus{}, status: map[string]ServiceStatus{},
	}
}

// Run keeps the services running until ctx ends. children delivers SIGCHLD.
func (s *Supervisor) Run(ctx context.Context, services []Service, children <-chan os.Signal) error {
	for _, svc := range services {
		out, err := openRotated(s.layout.Log(svc.Name), logLimit)
		if err != nil {
			return fmt.Errorf("open the log of %s: %w", svc.Name, err)
		}
		go s.keepRunning(ctx, svc, out)
	}
	for {
		s.reapChildren()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-children:
		case <-time.After(time.Second): // signals coalesce, so check in any case
		}
	}
}

// reapChildren collects every child that has ended: services, which keep waits for, and orphans, which nobody waits for.
func (s *Supervisor) reapChildren() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if exit, ok := s.exits[pid]; ok {
			delete(s.exits, pid)
			exit <- status // buffered
		}
	}
}

func (s *Supervisor) keepRunning(ctx context.Context, svc Service, out io.Writer) {
	backoff := backoffFirst
	for ctx.Err() == nil {
		if err := awaitReachable(ctx, svc.Needs); err != nil {
			return
		}
		started := time.Now()
		exit, err := s.startService(svc, out)
		if err != nil {
			s.log.Error("service does not start", "service", svc.Name, "error", err)
			s.recordEnd(svc.Name, err.Error(), false, 0)
		} else {
			status := <-exit
			life := time.Since(started)
			s.log.Warn("service ended", "service", svc.Name, "status", describeExit(status), "after", life)
			s.recordEnd(svc.Name, describeExit(status), status.Signaled() && status.Signal() == syscall.SIGKILL, life)
			if life > backoffReset {
				backoff = backoffFirst
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, backoffMost)
	}
}

func (s *Supervisor) startService(svc Service, out io.Writer) (<-chan syscall.WaitStatus, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	child, err := os.StartProcess(svc.Args[0], svc.Args, &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{null, w, w}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	err = errors.Join(err, w.Close(), null.Close())
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	exit := make(chan syscall.WaitStatus, 1)
	s.exits[child.Pid] = exit
	st := s.status[svc.Name]
	st.PID, st.Started = child.Pid, time.Now()
	s.status[svc.Name] = st
	s.writeStatus()
	go func() { // ends when the service, and everything that inherited its output, is gone
		_, err := io.Copy(out, r)
		if err = errors.Join(err, r.Close()); err != nil {
			s.log.Error("lost output", "service", svc.Name, "error", err)
		}
	}()
	// Release disables os.Process's own wait: the reaper waits for all children.
	return exit, child.Release()
}

func (s *Supervisor) recordEnd(name, how string, killed bool, life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status[name]
	st.PID, st.LastExit, st.Killed, st.LastLife = 0, how, killed, life
	st.Restarts++
	s.status[name] = st
	s.writeStatus()
}

// writeStatus writes the Status file. The caller holds mu.
func (s *Supervisor) writeStatus() {
	if err := atomicfile.WriteJSON(s.layout.Status(), s.status, 0o644); err != nil {
		s.log.Error("status not written", "error", err)
	}
}

// awaitReachable waits until each address accepts a connection. It gives up only when ctx ends.
func awaitReachable(ctx context.Context, addresses []string) error {
	dialer := net.Dialer{Timeout: time.Second}
	for _, address := range addresses {
		network, target, _ := strings.Cut(address, ":")
		for {
			conn, err := dialer.DialContext(ctx, network, target)
			if err == nil {
				if err := conn.Close(); err != nil {
					return err
				}
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

func describeExit(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}
