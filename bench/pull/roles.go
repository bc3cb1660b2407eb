package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/bench/nbdexport"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporter"
	"github.com/varvebackup/varve/internal/export/nbdvolume"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/nbd"
)

const (
	backupUID = "bench"
	// full and changes are the volumes of the backup: the whole disk, and what the bitmap has of it.
	full    = "full"
	changes = "changes"
	// bitmapName is the name of the bitmap with the changes.
	bitmapName = "changes"
)

// role is what a process of this program needs, in JSON on its command line.
type role struct {
	// Dir has the socket of the disk, and the files of secretFiles.
	Dir string
	// Profile is where the profile is written, if that is wanted.
	Profile string
	// Tunnel and HTTPS are addresses of the export server.
	Tunnel, HTTPS string
	Client        clientTask
}

func parseRole(args []string) (role, error) {
	var r role
	if len(args) != 1 {
		return r, fmt.Errorf("a role has one argument, not %d", len(args))
	}
	return r, json.Unmarshal([]byte(args[0]), &r)
}

func (r role) path(name string) string { return filepath.Join(r.Dir, name) }

// announce tells the parent process that the role is ready.
func announce(r role) error { return json.NewEncoder(os.Stdout).Encode(r) }

// untilInputEnds returns a context that ends when the parent process wants the role to end.
func untilInputEnds(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // an error is an end as well
		cancel()
	}()
	return ctx, cancel
}

// runLauncher is the launcher's half of a pull backup.
func runLauncher(ctx context.Context, r role) (err error) {
	ctx, cancel := untilInputEnds(ctx)
	defer cancel()
	volumes := openVolumes{}
	var infos []export.Info
	for name, bitmap := range map[string]string{full: "", changes: bitmapName} {
		v, err := nbdvolume.Open(ctx, nbd.Target{Network: "unix", Address: r.path(socketName), Export: nbdexport.Name}, nbdvolume.Options{
			Name: name, PointInTime: name + "-1", Bitmap: bitmap,
		})
		if err != nil {
			return err
		}
		defer v.Close() //nolint:errcheck // it returns nil
		volumes[name] = v
		infos = append(infos, v.Info())
	}
	authorities, err := os.ReadFile(r.path(certificateFile))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return errors.New("no certificate")
	}
	token, err := os.ReadFile(r.path(tunnelTokenFile))
	if err != nil {
		return err
	}
	var once sync.Once
	return tunnel.Run(ctx, tunnel.Config{
		Address: r.Tunnel, ServerName: serverName, BackupUID: backupUID,
		CA: func() (*x509.CertPool, error) { return pool, nil }, Token: func() ([]byte, error) { return token, nil },
		StateChanged: func(s tunnel.State) {
			if s.Connected {
				once.Do(func() { err = announce(r) })
			}
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}, volumes, infos)
}

// openVolumes are volumes by name.
type openVolumes map[string]export.Volume

// Open implements export.Volumes.
func (v openVolumes) Open(_ context.Context, name string) (export.Volume, error) {
	if volume, ok := v[name]; ok {
		return volume, nil
	}
	return nil, errclass.Errorf(errclass.NotFound, "no volume %s", name)
}

// runServer is the export pod.
func runServer(ctx context.Context, r role) error {
	ctx, cancel := untilInputEnds(ctx)
	defer cancel()
	listeners := map[int]net.Listener{}
	for _, port := range []int{podspec.TunnelPort, podspec.HTTPSPort} {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		listeners[port] = l
	}
	r.Tunnel, r.HTTPS = listeners[podspec.TunnelPort].Addr().String(), listeners[podspec.HTTPSPort].Addr().String()
	if err := announce(r); err != nil {
		return err
	}
	return exporter.Run(ctx, exporter.Options{
		Config: podspec.Config{Backup: &podspec.Backup{Name: "bench", UID: types.UID(backupUID), Volumes: []string{full, changes}}},
		Files:  exporter.Files{Certificate: r.path(certificateFile), Key: r.path(keyFile), Token: r.path(tokenFile), TunnelToken: r.path(tunnelTokenFile)},
		Listen: func(port int) (net.Listener, error) { return listeners[port], nil },
		Log:    slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}
