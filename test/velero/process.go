package velero

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// process is the server, and whatever it starts: plugins, which would outlive it.
type process struct {
	cmd   *exec.Cmd
	guard *os.File      // while it is open, the group lives
	ended chan struct{} // closed after err is set, when the server has ended; its plugins may be alive
	err   error
}

// guarded starts a guard in the process group, and then becomes the server. The guard kills the whole group, itself
// included, when the other end of descriptor 3 is closed: by kill, or because the process of the test has ended in whatever way.
const guarded = `(cat <&3 >/dev/null; kill -KILL 0) & exec "$@" 3<&-`

// startProcess starts a program, which is given by its absolute path: the server starts itself again for the plugins that it has built in.
func startProcess(program string, arguments, environment []string, output *os.File) (*process, error) {
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
	p := &process{cmd: cmd, guard: guard, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// terminate asks the server to end, and waits for it at most so long.
func (p *process) terminate(limit time.Duration) {
	// An error means that it has already ended.
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(limit):
	}
}

// kill kills the whole group, and returns when the server has ended.
func (p *process) kill() {
	_ = p.guard.Close() // nothing was written
	<-p.ended
}

// tail returns the end of a log, or why it cannot be read.
func tail(log *os.File) string {
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
	return string(noise.ReplaceAll(text, nil))
}

// noise is what each start of a server brings, and where in Velero's code a line is from.
var noise = regexp.MustCompile(`(?m)^.*level=info msg="(Starting (EventSource|Controller|workers)|registering plugin|plugin process exited|Found custom resource)".*\n| logSource="[^"]*"`)
