// Package exporter is the program in an export pod: it serves what the pod's configuration says, as package podspec
// describes it. Disks come from what is mounted into the pod, and the volumes of a backup from its launcher, through the
// tunnel.
package exporter

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/tunnel"
)

// certificateAge is how long a certificate is used before its files are read again.
const certificateAge = 30 * time.Second

// Files are what is mounted into the pod. The zero value stands for nothing; PodFiles is what a pod has.
type Files struct {
	Certificate, Key, Token, TunnelToken string
}

// PodFiles returns the paths in an export pod.
func PodFiles() Files {
	return Files{
		Certificate: podspec.CertificateFile, Key: podspec.KeyFile,
		Token: podspec.TokenFile, TunnelToken: podspec.TunnelTokenFile,
	}
}

// Options are what Run needs.
type Options struct {
	Config podspec.Config
	Files  Files
	// Listen opens a port. Nil listens on all addresses.
	Listen func(port int) (net.Listener, error)
	Log    *slog.Logger
}

// Run serves until ctx ends, and then returns nil.
func Run(ctx context.Context, o Options) error {
	if o.Listen == nil {
		o.Listen = func(port int) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
		}
	}
	certificate := &certificateFiles{files: o.Files, clock: clock.RealClock{}}
	if _, err := certificate.get(nil); err != nil {
		return err
	}
	config := server.Config{Token: server.ReadTokenFile(o.Files.Token), GetCertificate: certificate.get, Log: o.Log}
	group, ctx := errgroup.WithContext(ctx)
	if backup := o.Config.Backup; backup != nil {
		far := &tunnel.Server{
			TLS: &tls.Config{GetCertificate: certificate.get, MinVersion: tls.VersionTLS13}, BackupUID: string(backup.UID), Log: o.Log,
			Token: func() ([]byte, error) { return os.ReadFile(o.Files.TunnelToken) },
		}
		listener, err := o.Listen(podspec.TunnelPort)
		if err != nil {
			return fmt.Errorf("listen for the launcher: %w", err)
		}
		group.Go(func() error { return far.Serve(ctx, listener) })
		config.Volumes, config.Names = far, backup.Volumes
		config.Ready = func(context.Context) error {
			if !far.Connected() {
				return errors.New("no launcher is connected")
			}
			return nil
		}
	} else {
		config.Ready = func(context.Context) error { return checkDisks(o.Config.Volumes) }
	}
	https, err := server.New(config)
	if err != nil {
		return err
	}
	serveDisks(https, o.Config)
	group.Go(func() error {
		listener, err := o.Listen(podspec.HTTPSPort)
		if err != nil {
			return fmt.Errorf("listen for clients: %w", err)
		}
		return https.Serve(ctx, listener)
	})
	return group.Wait()
}

// certificateFiles is the certificate in two files, which are replaced while they are in use.
type certificateFiles struct {
	files Files
	clock clock.PassiveClock

	mu     sync.Mutex
	loaded *tls.Certificate
	at     time.Time
}

// get implements tls.Config.GetCertificate. A certificate that cannot be read any more, as in the middle of its replacement,
// is used on.
func (c *certificateFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded != nil && c.clock.Since(c.at) < certificateAge {
		return c.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(c.files.Certificate, c.files.Key)
	switch {
	case err == nil:
		c.loaded, c.at = &pair, c.clock.Now()
	case c.loaded == nil:
		return nil, fmt.Errorf("read the certificate: %w", err)
	}
	return c.loaded, nil
}
