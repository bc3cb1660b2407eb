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

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/export/httpserver"
	"github.com/varvebackup/varve/internal/export/metric"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/tunnel"
)

// metricsPath has the pod's metrics, for those who have the token, and metricsEndpoint is how it is named in them. The pod is in
// the namespace of its users and has no service account, so that it cannot ask the API server who somebody is.
const (
	metricsPath     = "/metrics"
	metricsEndpoint = "metrics"
)

// Files are what is mounted into the pod. The zero value stands for nothing; PodFiles is what a pod has.
type Files struct {
	Certificate, Key, Token, TunnelToken string
	// Manifests is a directory.
	Manifests string
}

// PodFiles returns the paths in an export pod.
func PodFiles() Files {
	return Files{
		Certificate: podspec.CertificateFile, Key: podspec.KeyFile,
		Token: podspec.TokenFile, TunnelToken: podspec.TunnelTokenFile, Manifests: podspec.ManifestsDirectory,
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
	certificate := httpserver.NewCertificateFiles(o.Files.Certificate, o.Files.Key, clock.RealClock{})
	if _, err := certificate.Get(nil); err != nil {
		return err
	}
	measures := metric.New(o.Config.Namespace, o.Config.Name)
	config := server.Config{Token: server.ReadTokenFile(o.Files.Token), GetCertificate: certificate.Get, Hooks: measures.Hooks(), Log: o.Log}
	// The pod ends before a machine may write to its disks. Another process may serve other bytes.
	run := uuid.NewString()
	group, ctx := errgroup.WithContext(ctx)
	if backup := o.Config.Backup; backup != nil {
		far := &tunnel.Server{
			TLS: &tls.Config{GetCertificate: certificate.Get, MinVersion: tls.VersionTLS13}, BackupUID: string(backup.UID), Log: o.Log,
			Token: func() ([]byte, error) { return os.ReadFile(o.Files.TunnelToken) },
		}
		listener, err := o.Listen(podspec.TunnelPort)
		if err != nil {
			return fmt.Errorf("listen for the launcher: %w", err)
		}
		group.Go(func() error { return far.Serve(ctx, listener) })
		measures.AddTunnel(far)
		config.Volumes, config.Names = far, backup.Volumes
		config.Ready = func(context.Context) error {
			if !far.Connected() {
				return errors.New("no launcher is connected")
			}
			return nil
		}
	} else {
		config.Ready = func(context.Context) error { return checkDisks(o.Config.Volumes) }
		disks := &diskVolumes{volumes: o.Config.Volumes, run: run}
		config.Volumes, config.Names = disks, disks.names()
	}
	https, err := server.New(config)
	if err != nil {
		return err
	}
	serveDisks(https, o.Config, run, measures.Hooks().Sent)
	if o.Config.Manifests {
		serveManifests(https, o.Config, o.Files, config.Token)
	}
	measures.AddServer(https)
	https.Handle(metricsPath, metricsEndpoint, exactly(metricsPath, measures.Handler().ServeHTTP))
	group.Go(func() error {
		listener, err := o.Listen(podspec.HTTPSPort)
		if err != nil {
			return fmt.Errorf("listen for clients: %w", err)
		}
		return https.Serve(ctx, listener)
	})
	return group.Wait()
}
