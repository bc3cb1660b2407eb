package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/test/wait"
)

// healthPath is the path of the server's health check. No bucket can have this name.
const healthPath = "/-/health"

// process is a program that runs until it is killed.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed after err is set
	err   error
}

func startProcess(program string, arguments, environment []string, output *os.File) (*process, error) {
	cmd := exec.CommandContext(context.Background(), program, arguments...)
	cmd.Env, cmd.Stdout, cmd.Stderr = environment, output, output
	// The cleanup does not run if a test times out.
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel sends that signal when the thread that started the process ends, so that thread stays with it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
}

// kill kills the process and waits for its end.
func (p *process) kill() {
	// An error means that it has already ended.
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// ready waits until the server answers.
func (s *Server) ready(ctx context.Context, p *process) error {
	transport := s.transport()
	transport.DisableKeepAlives = true
	return wait.For(ctx, time.Minute, "an answer", func(ctx context.Context) (bool, string, error) {
		err := healthy(ctx, transport, s.URL()+healthPath)
		if err == nil {
			return true, "", nil
		}
		select {
		case <-p.ended:
			return false, "", fmt.Errorf("it ended: %w", errors.Join(p.err, errors.New(tail(s.log))))
		default:
			return false, err.Error(), nil
		}
	})
}

func healthy(ctx context.Context, transport http.RoundTripper, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
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
	return string(text)
}
