//go:build libvirt_dlopen

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/domain"
	"github.com/varvebackup/varve/internal/domain/libvirtd"
	"github.com/varvebackup/varve/internal/launcher"
	"github.com/varvebackup/varve/internal/launcher/daemon"
	"github.com/varvebackup/varve/internal/launcher/target"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/privatesocket"
)

const (
	// drainTimeout bounds how long calls in progress may delay the end.
	drainTimeout = 2 * time.Second
	// libvirtdGrace is how long libvirtd may take to end.
	libvirtdGrace = 5 * time.Second
)

// runWorker runs one guest and returns the exit code.
func runWorker(ctx context.Context, o options, log *slog.Logger) int {
	outcome, err := runGuest(ctx, o, log)
	if err != nil {
		log.Error("launcher failed", "error", err)
		writeTermination(o, log, termination{End: "START_FAILED", Message: err.Error()})
		return 1
	}
	writeTermination(o, log, termination{End: outcome.End.String(), Message: outcome.Message, NeverStarted: outcome.NeverStarted})
	return outcome.ExitCode
}

func runGuest(ctx context.Context, o options, log *slog.Logger) (launcher.Outcome, error) {
	listener, err := listenAt(ctx, o.socket)
	if err != nil {
		return launcher.Outcome{}, err
	}
	if err := libvirtd.Prepare(); err != nil {
		return launcher.Outcome{}, errors.Join(err, listener.Close())
	}
	libvirt, err := daemon.Start(daemon.Spec{
		Path: o.libvirtd, Args: []string{"--config", o.libvirtdConfig}, Env: libvirtd.Environment(), Output: os.Stderr, Prefix: "libvirtd: ",
	})
	if err != nil {
		return launcher.Outcome{}, errors.Join(err, listener.Close())
	}
	l := launcher.New(launcher.Config{
		Connect:  func() (launcher.Guest, error) { return connectGuest(o.libvirtURI) },
		Overlays: &domain.Overlays{Dir: layout.OverlayDir},
		Images:   launcher.QEMUImages{},
		OpenTarget: func(name string) (*target.Volume, error) {
			return target.Open(layout.Utility(name), target.MountInfo)
		},
		ListenMigration: func(ctx context.Context) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprint(":", layout.MigrationPort))
		},
		Paths:        launcher.PodPaths(),
		SerialLog:    o.serialLog,
		LibvirtGone:  libvirt.Done(),
		EndEmulators: func(ctx context.Context) error { return daemon.EndEmulators(ctx, o.emulatorPIDs) },
		Clock:        clock.RealClock{},
		Log:          log,
	})
	server := grpc.NewServer()
	l.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	outcome := l.Run(ctx)
	drainCalls(server)
	if err := <-served; err != nil {
		log.Warn("serve", "error", err)
	}
	stopping, cancel := context.WithTimeout(context.Background(), libvirtdGrace)
	defer cancel()
	libvirt.Stop(stopping)
	return outcome, nil
}

func connectGuest(uri string) (launcher.Guest, error) {
	session, err := domain.Connect(uri)
	if err != nil {
		return nil, err // not session: a nil pointer in an interface is not nil
	}
	return session, nil
}

// listenAt listens at path, and replaces a socket that an earlier container left.
func listenAt(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen: %w", err)
	}
	listener, err := privatesocket.Listen(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return listener, nil
}

// drainCalls gives calls in progress some time to be answered.
func drainCalls(server *grpc.Server) {
	stopped := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(drainTimeout):
		server.Stop()
		<-stopped
	}
}
