package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/privatesocket"
)

const (
	// connections is how many to ask for. A server that is full or slow gets one.
	connections = 4
	// startTimeout bounds how long a qemu-storage-daemon may take to open an image: it reads the bitmaps into memory.
	startTimeout = 2 * time.Minute
	// endTimeout bounds how long it may take to close an image: it writes the bitmaps and flushes everything.
	endTimeout = 5 * time.Minute
	// signalEvery is the pause before it is told again to end.
	signalEvery = 5 * time.Second
	// lastWords is how long to wait for the exit of a server that has cut its connections.
	lastWords = 2 * time.Second
	// maxSocketPath is the longest path that fits into sockaddr_un.
	maxSocketPath = 107
	// serverProgram opens images. Unlike qemu-nbd, it takes a description of every file, and tells what it has opened
	// before anybody can read it.
	serverProgram = "qemu-storage-daemon"
	// serverExport is the name of its only export.
	serverExport = "disk"
)

// server is a qemu-storage-daemon that serves one image to this process alone.
type server struct {
	*confined
	image *imageChain
	said  tail
	qmp   *qmpClient
	// socket is the path at which it listened until the connections were established.
	socket string
}

// startServer starts a server for an image and connects to it. It takes ownership of the image, and closes it even on
// failure. If bitmap is set, the export has it. death is the signal that the server gets when this process dies.
func startServer(ctx context.Context, image *imageChain, death unix.Signal, bitmap string) (*server, *nbd.Client, error) {
	s := &server{image: image}
	client, err := s.openExport(ctx, death, bitmap)
	if err == nil {
		return s, client, nil
	}
	err = fmt.Errorf("serve %s: %w", image.path, err)
	if s.confined != nil && s.ended != nil && !s.hasEnded() {
		return nil, nil, errors.Join(err, s.shutDown())
	}
	return nil, nil, errors.Join(err, image.close())
}

func (s *server) openExport(ctx context.Context, death unix.Signal, bitmap string) (*nbd.Client, error) {
	dir, err := os.MkdirTemp("", "varve-nbd-") // mode 0700
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what is left is an empty directory
	s.socket = filepath.Join(dir, "s")
	if len(s.socket) > maxSocketPath {
		return nil, errclass.Errorf(errclass.Invalid, "the directory for temporary files, %s, has too long a name for a socket: set TMPDIR to another one", filepath.Dir(dir))
	}
	listener, err := listenFile(ctx, s.socket)
	if err != nil {
		return nil, err
	}
	defer listener.Close() //nolint:errcheck // the server has its own descriptor
	if err := s.startProcess(ctx, listener, death); err != nil {
		return nil, err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.exportImage(starting, bitmap); err != nil {
		return nil, s.explainStart(ctx, err)
	}
	if err := listener.Close(); err != nil { // From now on, nothing listens once the server has ended.
		return nil, err
	}
	o := nbd.Options{Contexts: sourceContexts(bitmap), Connections: connections, HandshakeTimeout: startTimeout}
	client, err := nbd.Dial(starting, nbd.Target{Network: "unix", Address: s.socket, Export: serverExport}, o)
	if err != nil {
		return nil, s.explainStart(ctx, err)
	}
	return client, nil
}

// listenFile returns a socket that listens at path.
func listenFile(ctx context.Context, path string) (*os.File, error) {
	l, err := privatesocket.Listen(ctx, path)
	if err != nil {
		return nil, err
	}
	unixListener, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen at %s: %T", path, l), l.Close())
	}
	unixListener.SetUnlinkOnClose(false)
	f, err := unixListener.File()
	return f, errors.Join(err, l.Close())
}

// startProcess starts the program with the image's nodes. It exports nothing yet.
func (s *server) startProcess(ctx context.Context, listener *os.File, death unix.Signal) error {
	args := []string{"--chardev", "stdio,id=qmp", "--monitor", "chardev=qmp"}
	for _, node := range s.image.blockdevNodes() {
		text, err := json.Marshal(node)
		if err != nil {
			return err
		}
		args = append(args, "--blockdev", string(text))
	}
	files := append(s.image.openFiles(), listener)
	args = append(args, "--nbd-server", fmt.Sprintf("addr.type=fd,addr.str=%d,max-connections=%d", firstDescriptor+len(files)-1, connections))
	c, err := newConfined(context.WithoutCancel(ctx), serverProgram, files, args...)
	if err != nil {
		return err
	}
	c.cmd.Stderr = &s.said
	c.cmd.SysProcAttr.Pdeathsig = death
	if s.qmp, err = newQMPClient(c.cmd); err != nil {
		return err
	}
	s.confined = c
	if err := c.startProcess(); err != nil {
		s.confined = nil
		s.qmp.close()
		return err
	}
	return nil
}

// exportImage lets the server export the image, after it has checked that the server has opened only the files that it was
// given.
func (s *server) exportImage(ctx context.Context, bitmap string) error {
	defer context.AfterFunc(ctx, func() { _ = s.cmd.Process.Kill() })() // unless it has just ended
	nodes, err := s.qmp.blockNodes()
	if err != nil {
		return err
	}
	if err := s.image.refuseOtherNodes(nodes); err != nil {
		return err
	}
	export := map[string]any{"type": "nbd", "id": "export", "node-name": topNode, "name": serverExport, "writable": s.image.writable}
	if bitmap != "" {
		if err := checkBitmap(s.image.path, bitmap, nodes); err != nil {
			return err
		}
		export["bitmaps"] = []string{bitmap}
	}
	return s.qmp.Run("block-export-add", export, nil)
}

// explainStart returns why the server could not start, if it has ended. The error of the connection to it is then
// useless.
func (s *server) explainStart(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errclass.Of(err) != errclass.None || errors.Is(err, ErrChanged) {
		return err
	}
	wait := time.NewTimer(lastWords)
	defer wait.Stop()
	select {
	case <-s.ended:
		return s.processFailure("ended")
	case <-wait.C:
		return err
	}
}

// explainError adds to an error of the connection why the server ended, if it did.
func (s *server) explainError(err error) error {
	wait := time.NewTimer(lastWords)
	defer wait.Stop()
	select {
	case <-s.ended:
		return fmt.Errorf("%w; %w", s.processFailure("ended"), err)
	case <-wait.C:
		return err
	}
}

var errExitedWell = errors.New("exit status 0")

// processFailure returns how the process ended, and what it said.
func (s *server) processFailure(what string) error {
	exit, said := s.err, s.said.String()
	if exit == nil {
		exit = errExitedWell
	}
	if said != "" {
		said = ": " + said
	}
	return fmt.Errorf("%s for %s %s (%w)%s", serverProgram, s.image.path, what, exit, said)
}

// shutDown asks the process to close the image and exit, and waits until it has.
func (s *server) shutDown() error {
	err := s.stopProcess()
	s.qmp.close()
	return errors.Join(err, s.image.close())
}

func (s *server) stopProcess() error {
	if s.hasEnded() {
		return s.processFailure("ended before it was asked to")
	}
	// The daemon's signal handler only sets a flag. A signal that arrives right before the daemon waits goes unnoticed until the next event.
	// Closing its input is one. On a busy machine even that may come before the handler has run, so it is signaled again.
	_ = s.cmd.Process.Signal(unix.SIGTERM) // unless it has just ended
	_ = s.qmp.in.Close()
	again, wait := time.NewTicker(signalEvery), time.NewTimer(endTimeout)
	defer again.Stop()
	defer wait.Stop()
	for !s.hasEnded() {
		select {
		case <-s.ended:
		case <-again.C:
			_ = s.cmd.Process.Signal(unix.SIGTERM)
		case <-wait.C:
			_ = s.cmd.Process.Kill() // unless it has just ended
			<-s.ended
			return s.processFailure(fmt.Sprintf("had to be killed, as it did not close the image in %s", endTimeout))
		}
	}
	if s.err != nil {
		return s.processFailure("failed at its end")
	}
	return nil
}
