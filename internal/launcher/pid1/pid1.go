// Package pid1 is the init process of the launcher container. It runs one child, the launcher proper,
// and reaps every orphan of the container.
//
// Init and launcher are two processes of one program on purpose. A process that reaps with wait4(-1) steals the
// children that os/exec waits for. A process that does not reap leaves zombies, and libvirt takes a zombie QEMU for a
// living one and waits 15 seconds for it. The init has exactly one child of its own, so it can reap everything at once.
//
// When the child exits, the init sends SIGTERM to the rest of the container and gives it a short time, so that a QEMU
// that lost its launcher closes its files properly. When the init dies, the kernel kills the whole container.
package pid1

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lastGrace is how long the processes that the child leaves behind have to exit after SIGTERM.
const lastGrace = 5 * time.Second

// Status says how the child ended.
type Status struct {
	// Code is the exit code: the child's own, or 128 + Signal.
	Code int
	// Signal is the signal that killed the child. 0: it exited by itself.
	Signal syscall.Signal
}

// Run starts path with args (args[0] is the name) and the environment of this process. It forwards SIGTERM and SIGINT
// to the child, reaps orphans, and returns when the child has ended. It must be the only code in the process that
// starts or waits for children.
func Run(path string, args []string) (Status, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	child, err := os.StartProcess(path, args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return Status{}, fmt.Errorf("start %s: %w", path, err)
	}
	for s := range signals {
		if s != syscall.SIGCHLD {
			// A child that has just ended cannot be signaled, and its SIGCHLD is on the way.
			_ = child.Signal(s)
			continue
		}
		status, ended, err := reapZombies(child.Pid)
		if err != nil {
			return Status{}, err
		}
		if ended {
			endTheRest(signals)
			return status, nil
		}
	}
	return Status{}, errors.New("signals ended")
}

// reapZombies reaps all current zombies. SIGCHLD is not queued: one may stand for many.
func reapZombies(child int) (status Status, ended bool, err error) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD) || (err == nil && pid == 0):
			return status, ended, nil
		case err != nil:
			return status, ended, fmt.Errorf("wait for children: %w", err)
		}
		if pid == child {
			status, ended = statusOf(ws), true
		}
	}
}

func statusOf(ws unix.WaitStatus) Status {
	if ws.Signaled() {
		return Status{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}
	}
	return Status{Code: ws.ExitStatus()}
}

// endTheRest asks all other processes of the container to exit and reaps them for a while. Only PID 1 may do this:
// from any other process kill(-1) would reach strangers.
func endTheRest(signals <-chan os.Signal) {
	if os.Getpid() != 1 || unix.Kill(-1, unix.SIGTERM) != nil {
		return
	}
	timer := time.NewTimer(lastGrace)
	defer timer.Stop()
	for {
		if _, _, err := reapZombies(0); err != nil || !hasChildren() {
			return
		}
		select {
		case <-signals:
		case <-timer.C:
			return
		}
	}
}

// hasChildren says whether any child, living or zombie, is left.
func hasChildren() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return !errors.Is(err, unix.ECHILD)
}
