package exporter

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// connect runs the launcher of a pod's backup until stop is called.
func (p *pod) connect(volumes ...*exporttest.Volume) (stop func()) {
	p.Helper()
	byName, infos := exporttest.Volumes{}, []export.Info{}
	for _, v := range volumes {
		byName[v.Description.Name] = v
		infos = append(infos, v.Info())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- tunnel.Run(ctx, tunnel.Config{
			Address: p.addresses[podspec.TunnelPort], ServerName: "localhost", BackupUID: "uid",
			CA: func() (*x509.CertPool, error) {
				return p.client.Transport.(*http.Transport).TLSClientConfig.RootCAs, nil
			},
			Token: func() ([]byte, error) { return tunnel.Token([]byte("key"), "uid"), nil },
		}, byName, infos)
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			p.Error(err)
		}
	}
}

// The program serves what package endpoint reads, in both dialects, also when the launcher comes and goes.
func TestRun_endpointsAreReadAsDisks(t *testing.T) {
	t.Parallel()
	full, incremental := exporttest.NewVolume("root", 5<<20+512, false, 4), exporttest.NewVolume("data", 3<<20, true, 5)
	p := start(t, podspec.Config{UID: "export", Backup: &podspec.Backup{Name: "b", UID: "uid", Volumes: []string{"root", "data"}}})
	client := endpoint.New(endpoint.Options{
		Authorities: func(context.Context) ([]byte, error) { return p.authorities, nil },
		Token:       func(context.Context) (string, error) { return "the clients'", nil },
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, p.addresses[podspec.HTTPSPort])
		},
		FirstPause: time.Millisecond, LongestPause: 50 * time.Millisecond,
	})
	defer client.Close()
	stop := p.connect(full, incremental) // The client waits until it is connected.
	for _, dialect := range []endpoint.Dialect{endpoint.Spec, endpoint.KubeVirt} {
		for _, v := range []*exporttest.Volume{full, incremental} {
			name := v.Description.Name
			disk, err := client.OpenDisk(t.Context(), endpoint.Volume{
				Name: name, Map: "https://localhost" + podspec.MapPath(name), Data: "https://localhost" + podspec.DataPath(name),
				Dialect: dialect, Incremental: v.Description.Incremental,
			}, "id")
			if err != nil {
				t.Fatalf("dialect %d, %s: %v", dialect, name, err)
			}
			stop()
			stop = p.connect(full, incremental)
			got := make([]byte, disk.Bytes())
			data, _ := disk.Data(t.Context())
			for e := range data.All() {
				if err := disk.ReadAt(t.Context(), got[e.Offset:e.End()], e.Offset); err != nil {
					t.Fatalf("dialect %d, %s: %v", dialect, name, err)
				}
			}
			if !bytes.Equal(got, v.Content) || disk.Bytes() != v.Description.Bytes {
				verdict.Errorf(t, "dialect %d, %s: other bytes", dialect, name)
			}
			checkChanges(t, fmt.Sprintf("dialect %d, %s", dialect, name), disk, v)
		}
	}
	stop()
}

// checkChanges compares what a disk says of its changes with what was changed.
func checkChanges(t *testing.T, what string, disk *endpoint.Disk, v *exporttest.Volume) {
	t.Helper()
	changed, _ := disk.Changes(t.Context())
	if (changed != nil) != v.Description.Incremental {
		verdict.Errorf(t, "%s: changes %v", what, changed)
	}
	if changed == nil {
		return
	}
	err := v.Regions(t.Context(), extent.Extent{Length: v.Description.Bytes}, func(r export.Region) bool {
		if (r.Kind == export.Clean) == changed.Overlaps(r.Extent) {
			verdict.Errorf(t, "%s: %v of kind %d", what, r.Extent, r.Kind)
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
}
