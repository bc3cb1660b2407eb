//go:build libvirt_dlopen

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/export/exporter"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/tunnel"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/authority"
)

const (
	// writesPerScript bounds how long a script in the guest takes.
	writesPerScript = 100
	writeScripts    = 5
	// slowClientBytes is what the slow client takes in a second.
	slowClientBytes = 1 << 20
	clientToken     = "a-token"
)

// BenchmarkPull_guestWrites measures synced writes of 4 KiB in a guest, each to a cluster of its own: without a backup,
// during a pull by a client that takes what it gets, and by one that takes 1 MiB/s. bench/pull runs it.
func BenchmarkPull_guestWrites(b *testing.B) {
	p := newPod(b, 1024*mib)
	p.addGuestWriter()
	p.target("backup-1", 2048*mib)
	p.up()
	p.writeTimes(0) // the first writes of a guest are slower than all others
	phases := []string{"idle", "fast", "slow"}
	times := map[string][]time.Duration{"idle": p.writeTimes(1)}
	export := p.servePull("latency", "backup-1")
	for i, limit := range []int64{0, slowClientBytes} {
		stop := export.pullWhileNeeded(p, limit)
		times[phases[1+i]] = p.writeTimes(2 + i)
		if read := stop(); read < mib {
			b.Errorf("%s: the client read %d bytes", phases[1+i], read)
		}
	}
	p.finish("latency")
	for _, phase := range phases {
		b.Run(phase, func(b *testing.B) {
			sorted := slices.Sorted(slices.Values(times[phase]))
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(sorted[len(sorted)/2].Seconds()*1000, "p50-ms")
			b.ReportMetric(sorted[len(sorted)*99/100].Seconds()*1000, "p99-ms")
		})
	}
}

// addGuestWriter puts the program that writes onto the guest's file system.
func (p *pod) addGuestWriter() {
	p.Helper()
	const program = "../../build/bench/guestwriter"
	if _, err := os.Stat(program); err != nil {
		p.Fatalf("run make bench-guest, which builds it: %v", err)
	}
	content := p.TempDir()
	p.run("cp", program, content)
	p.run("mkfs.ext4", "-q", "-F", "-d", content, layout.DiskFile("fs"))
}

// writeTimes returns how long writes of the guest took, each with its fsync. Every pass writes other clusters.
func (p *pod) writeTimes(pass int) (times []time.Duration) {
	p.Helper()
	for script := range writeScripts {
		first := (pass*writeScripts + script) * writesPerScript
		said := p.guest(fmt.Sprintf("/disks/fs/guestwriter /dev/vdb %d %d", first, writesPerScript))
		for line := range strings.Lines(said) {
			nanoseconds, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil {
				p.Fatalf("the guest's writer said %q: %v", line, err)
			}
			times = append(times, time.Duration(nanoseconds))
		}
	}
	if len(times) != writeScripts*writesPerScript {
		p.Fatalf("%d writes were timed, of %d", len(times), writeScripts*writesPerScript)
	}
	return times
}

// pullExport is an export pod to which the launcher is connected.
type pullExport struct {
	url    string
	client *http.Client
}

// servePull begins a backup and serves it as an export pod does.
func (p *pod) servePull(uid, target string) *pullExport {
	p.Helper()
	p.serve(uid, target, "")
	dir := authority.New(p).Files(p)
	in := func(name string) string { return filepath.Join(dir, name) }
	proof := tunnel.Token([]byte("the installation's"), uid)
	if err := errors.Join(os.WriteFile(in("token"), []byte(clientToken), 0o600), os.WriteFile(in("tunnel-token"), proof, 0o600)); err != nil {
		p.Fatal(err)
	}
	authorities, err := os.ReadFile(in("ca-cert.pem"))
	if err != nil {
		p.Fatal(err)
	}
	listeners := map[int]net.Listener{}
	for _, port := range []int{podspec.TunnelPort, podspec.HTTPSPort} {
		if listeners[port], err = new(net.ListenConfig).Listen(p.Context(), "tcp", "127.0.0.1:0"); err != nil {
			p.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.Context()))
	served := make(chan error, 1)
	go func() {
		served <- exporter.Run(ctx, exporter.Options{
			Config: podspec.Config{Backup: &podspec.Backup{Name: uid, UID: types.UID(uid), Volumes: []string{"fs", "data"}}},
			Files:  exporter.Files{Certificate: in("server-cert.pem"), Key: in("server-key.pem"), Token: in("token"), TunnelToken: in("tunnel-token")},
			Listen: func(port int) (net.Listener, error) { return listeners[port], nil }, Log: slog.New(slog.DiscardHandler),
		})
	}()
	p.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			p.Error(err)
		}
	})
	_, err = p.client.ConnectBackup(p.Context(), &pb.ConnectBackupRequest{
		Uid: uid, Address: listeners[podspec.TunnelPort].Addr().String(), ServerName: "localhost", Authorities: authorities, Token: proof,
	})
	if err != nil {
		p.Fatal(err)
	}
	p.await("the tunnel", func(s *pb.State) bool { return s.Backup.GetTunnel().GetConnected() })
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authorities)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}}
	p.Cleanup(transport.CloseIdleConnections)
	return &pullExport{url: "https://" + listeners[podspec.HTTPSPort].Addr().String() + "/exports/data/stream", client: &http.Client{Transport: transport}}
}

// pullWhileNeeded reads the volume again and again until stop is called, which returns how many bytes were read. limit is
// in bytes per second; 0 is none.
func (x *pullExport) pullWhileNeeded(p *pod, limit int64) (stop func() int64) {
	p.Helper()
	ctx, cancel := context.WithCancel(p.Context())
	done := make(chan error, 1)
	var read int64
	go func() {
		for {
			if err := x.pullOnce(ctx, limit, &read); err != nil {
				done <- err
				return
			}
		}
	}()
	return func() int64 {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			p.Errorf("the client: %v", err)
		}
		return read
	}
}

func (x *pullExport) pullOnce(ctx context.Context, limit int64, read *int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, x.url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set(server.TokenHeader, clientToken)
	answer, err := x.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	began, first := time.Now(), *read
	buffer := make([]byte, 64<<10)
	for {
		n, err := answer.Body.Read(buffer)
		*read += int64(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if limit > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(*read-first) * time.Second / time.Duration(limit))))
		}
	}
}
