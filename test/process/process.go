// Package process runs the servers that tests are made against, and reads their logs.
//
// A server and all that it starts are one process group, which a guard kills when the test's process has ended, in whatever way.
package process

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a server, and whatever it starts, which would outlive it.
type Process struct {
	cmd   *exec.Cmd
	guard *os.File      // while it is open, the group lives
	ended chan struct{} // closed after err is set
	err   error
}

// guarded starts a guard in the process group, and then becomes the server. The guard kills the whole group, itself
// included, when the other end of descriptor 3 is closed: by Kill, or because the process of the test has ended.
const guarded = `(cat <&3 >/dev/null; kill -KILL 0) & exec "$@" 3<&-`

// Start starts a program, which is given by its absolute path. Both of its outputs go to output.
func Start(program string, arguments, environment []string, output *os.File) (*Process, error) {
	watched, guard, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	shell := append([]string{"-c", guarded, "sh", program}, arguments...)
	cmd := exec.CommandContext(context.Background(), "/bin/sh", shell...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = environment, output, output, []*os.File{watched}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	if err = errors.Join(err, watched.Close()); err != nil {
		return nil, errors.Join(err, guard.Close())
	}
	p := &Process{cmd: cmd, guard: guard, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Group is the ID of the process group, which is the server's own, too.
func (p *Process) Group() int { return p.cmd.Process.Pid }

// Ended says whether the server has ended, and how. What it has started may be alive.
func (p *Process) Ended() (bool, error) {
	select {
	case <-p.ended:
		return true, p.err
	default:
		return false, nil
	}
}

// Terminate asks the server to end, and waits for it at most so long.
func (p *Process) Terminate(limit time.Duration) {
	// An error means that it has already ended.
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(limit):
	}
}

// Kill kills the whole group, and returns when the server has ended.
func (p *Process) Kill() {
	_ = p.guard.Close() // nothing was written
	<-p.ended
}

// Tail returns the end of a log, or why it cannot be read.
func Tail(log *os.File) string {
	const most = 64 << 10 // bytes
	info, err := log.Stat()
	if err != nil {
		return err.Error()
	}
	from := max(0, info.Size()-most)
	text, err := io.ReadAll(io.NewSectionReader(log, from, info.Size()-from))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
