package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/nbd"
)

const (
	// connections is how many are asked for; a server that is full or slow gets one.
	connections = 4
	// startTimeout bounds how long a qemu-nbd may take to open an image: bitmaps are read into memory.
	startTimeout = 2 * time.Minute
	// endTimeout bounds how long it may take to close it: bitmaps are written, and everything is flushed.
	endTimeout = 5 * time.Minute
	// lastWords is how long to wait for the end of a server that has cut its connections.
	lastWords = 2 * time.Second
	// maxSocketPath is what fits into sockaddr_un.
	maxSocketPath = 107
	// pollEvery is how often a starting server is asked.
	pollEvery = 5 * time.Millisecond
)

// server is a qemu-nbd that serves one image to this process alone.
type server struct {
	image string
	cmd   *exec.Cmd
	said  tail
	// ended is closed when the process is gone, after err, its exit, was set.
	ended chan struct{}
	err   error
}

// serve starts qemu-nbd for an image and connects to it. args come before the image.
func serve(ctx context.Context, image string, death unix.Signal, contexts []string, args ...string) (*server, *nbd.Client, error) {
	path, err := program("qemu-nbd")
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "varve-nbd-") // mode 0700
	if err != nil {
		return nil, nil, fmt.Errorf("serve %s: %w", image, err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what is left is an empty directory
	socket := filepath.Join(dir, "s")
	if len(socket) > maxSocketPath {
		return nil, nil, errorf(ErrInvalid, "serve %s: the directory for temporary files, %s, has too long a name for a socket: set TMPDIR to another one", image, filepath.Dir(dir))
	}
	args = append([]string{"--persistent", fmt.Sprintf("--shared=%d", connections), "--socket=" + socket, "--format=" + string(QCOW2)}, args...)
	s := &server{image: image, ended: make(chan struct{}), cmd: exec.CommandContext(context.WithoutCancel(ctx), path, append(args, image)...)}
	s.cmd.Stderr = &s.said
	s.cmd.WaitDelay = time.Second
	s.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: death}
	if err := s.start(); err != nil {
		return nil, nil, fmt.Errorf("serve %s: %w", image, err)
	}
	client, err := s.connect(ctx, nbd.Target{Network: "unix", Address: socket}, contexts)
	if err != nil {
		err = fmt.Errorf("serve %s: %w", image, err)
		if ctx.Err() == nil {
			err = s.explain(err)
		}
		if !s.gone() {
			err = errors.Join(err, s.end())
		}
		return nil, nil, err
	}
	return s, client, nil
}

// start runs the process. Its thread is the process' parent, at whose end the kernel sends the signal: it stays.
func (s *server) start() error {
	started := make(chan error, 1)
	go func() {
		defer close(s.ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.err = s.cmd.Wait()
		}
	}()
	return <-started
}

func (s *server) connect(ctx context.Context, t nbd.Target, contexts []string) (*nbd.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		client, err := nbd.Dial(ctx, t, nbd.Options{Contexts: contexts, Connections: connections, HandshakeTimeout: startTimeout})
		notYet := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
		if err == nil || !notYet {
			return client, err
		}
		select {
		case <-s.ended:
			return nil, err
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func (s *server) gone() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// explain adds to an error of the connection why the server ended, if it did.
func (s *server) explain(err error) error {
	wait := time.NewTimer(lastWords)
	defer wait.Stop()
	select {
	case <-s.ended:
		return fmt.Errorf("%w; %w", s.failure("ended"), err)
	case <-wait.C:
		return err
	}
}

var errExitedWell = errors.New("exit status 0")

// failure says what happened to the process, which has ended, and what it said.
func (s *server) failure(what string) error {
	exit, said := s.err, s.said.String()
	if exit == nil {
		exit = errExitedWell
	}
	if said != "" {
		said = ": " + said
	}
	return fmt.Errorf("qemu-nbd for %s %s (%w)%s", s.image, what, exit, said)
}

// end asks the process to close the image and to end, and waits until it has.
func (s *server) end() error {
	if s.gone() {
		return s.failure("ended before it was asked to")
	}
	_ = s.cmd.Process.Signal(unix.SIGTERM) // unless it has just ended
	wait := time.NewTimer(endTimeout)
	defer wait.Stop()
	select {
	case <-s.ended:
	case <-wait.C:
		_ = s.cmd.Process.Kill() // unless it has just ended
		<-s.ended
		return s.failure(fmt.Sprintf("had to be killed, as it did not close the image in %s", endTimeout))
	}
	if s.err != nil {
		return s.failure("failed at its end")
	}
	return nil
}
