// Package daemon runs libvirtd beside the launcher and ends what it leaves behind.
//
// libvirtd stays in the foreground, and its output goes line by line to the launcher's log, with a prefix. Nothing
// restarts it: a launcher whose libvirtd died has lost control of its guest, and ends.
package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// maxLine is the longest line of output, in bytes, that is kept in one piece.
const maxLine = 64 << 10

// Spec says what to run.
type Spec struct {
	// Path is the program and Args its arguments, without the name.
	Path string
	Args []string
	// Env is the program's whole environment.
	Env []string
	// Output receives the program's standard output and standard error as whole lines, each with Prefix.
	Output io.Writer
	Prefix string
}

// Process is a running daemon. Its methods may be called from several goroutines.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start runs the daemon.
func Start(spec Spec) (*Process, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx // Stop ends it, gently first
	cmd.Env, cmd.Stdout, cmd.Stderr = spec.Env, in, in
	if cmd.Env == nil {
		cmd.Env = []string{} // not this process's
	}
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	var copied sync.WaitGroup
	copied.Go(func() { copyLines(spec.Output, spec.Prefix, out) })
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
		// A grandchild such as QEMU may keep the pipe open for ever, but everything that the daemon itself wrote is already in the pipe.
		_ = out.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) //nolint:forbidigo // a deadline of the operating system
		copied.Wait()
		_ = out.Close()
	}()
	return p, nil
}

// copyLines writes each line of r with the prefix, in one Write. It splits a line that is too long.
func copyLines(w io.Writer, prefix string, r io.Reader) {
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			if line[len(line)-1] == '\n' {
				line = line[:len(line)-1]
			}
			// A failure to log could only be reported to the log.
			_, _ = fmt.Fprintf(w, "%s%s\n", prefix, line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// Done is closed when the daemon has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the daemon ended. It is nil while the daemon runs and after exit code 0.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Stop asks the daemon to exit, kills it when ctx is done, and returns when it is gone.
func (p *Process) Stop(ctx context.Context) {
	// A daemon that has ended cannot be signaled and does not need to be.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
	}
	<-p.done
}
