//go:build nbd_interop

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/repository"
)

// patience is how long anything that a test waits for may take.
const patience = 2 * time.Minute

// diskServer is a running `varve disk serve`.
type diskServer struct {
	// address is a socket's path, or host:port.
	address string
	cmd     *exec.Cmd
	ended   chan error

	mu   sync.Mutex
	said bytes.Buffer
}

var serving = regexp.MustCompile(`: export \S+ at (\S+); interrupt to end\n$`)

// startServer runs `varve disk serve` in a directory, and returns once it listens.
func startServer(dir string, env []string, args ...string) (*diskServer, error) {
	s := &diskServer{cmd: exec.CommandContext(context.Background(), "varve", append([]string{"disk", "serve"}, args...)...), ended: make(chan error, 1)}
	s.cmd.Dir, s.cmd.Env = dir, append(os.Environ(), env...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	listens := make(chan string, 1)
	go func() {
		s.listen(stderr, listens)
		s.ended <- s.cmd.Wait()
	}()
	select {
	case s.address = <-listens:
		return s, nil
	case err := <-s.ended:
		return nil, fmt.Errorf("varve disk serve %s: %w\n%s", strings.Join(args, " "), err, s.text())
	case <-time.After(patience):
		return nil, errors.Join(errors.New("varve disk serve does not listen"), s.cmd.Process.Kill())
	}
}

// listen keeps the process's output, and sends the address that it listens on.
func (s *diskServer) listen(stderr io.Reader, listens chan<- string) {
	for lines := bufio.NewReader(stderr); ; {
		line, err := lines.ReadString('\n')
		s.mu.Lock()
		s.said.WriteString(line)
		s.mu.Unlock()
		if found := serving.FindStringSubmatch(line); found != nil {
			listens <- found[1]
		}
		if err != nil {
			return
		}
	}
}

// text returns what the process has said.
func (s *diskServer) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said.String()
}

// end sends a signal and returns how the process ended.
func (s *diskServer) end(signal os.Signal) error {
	if err := s.cmd.Process.Signal(signal); err != nil {
		return err
	}
	select {
	case err := <-s.ended:
		return err
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("%v does not end varve disk serve", signal), s.cmd.Process.Kill())
	}
}

// kept is a restore point in a repository of its own.
type kept struct {
	// dir holds the repository, and the test may use it. env lets varve find the repository.
	dir, id string
	env     []string
}

// keep makes a restore point of a disk called root.
func keep(t *testing.T, disk repository.DiskSource) *kept {
	t.Helper()
	dir, err := os.MkdirTemp("", "serve") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const password = "secret of this test"
	k := &kept{dir: dir}
	config, at := filepath.Join(dir, "config"), repository.Location{Directory: filepath.Join(dir, "blobs")}
	k.env = []string{"VARVE_REPO_CONFIG=" + config, "VARVE_PASSWORD=" + password}
	if err := repository.Create(t.Context(), at, password, repository.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := repository.Connect(t.Context(), config, at, password, repository.ConnectOptions{Host: "host", User: "varve"}); err != nil {
		t.Fatal(err)
	}
	r, err := repository.Open(t.Context(), config, password)
	if err != nil {
		t.Fatal(err)
	}
	disk.Name = "root"
	p, err := r.Backup(t.Context(), repository.Request{Source: repository.Source{Host: "host", User: "varve", Path: "/web"}, Disks: []repository.DiskSource{disk}})
	if err := errors.Join(err, r.Close(context.Background())); err != nil {
		t.Fatal(err)
	}
	k.id = p.ID
	return k
}

// serve serves the restore point on a socket until the test ends or calls end.
func (k *kept) serve(t *testing.T, args ...string) *diskServer {
	t.Helper()
	s, err := startServer(k.dir, k.env, append([]string{k.id, "--socket", filepath.Join(k.dir, "s")}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may already have ended
		if t.Failed() {
			t.Logf("varve disk serve said:\n%s", s.text())
		}
	})
	return s
}

// dial opens the export of a server on a socket.
func (s *diskServer) dial(t *testing.T, connections int) *nbd.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := nbd.Dial(ctx, nbd.Target{Network: "unix", Address: s.address, Export: "root"}, nbd.Options{Connections: connections})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // its server may already have ended
	return c
}

// uri returns the URI of a server on a socket.
func (s *diskServer) uri() string { return "nbd+unix:///root?socket=" + s.address }
