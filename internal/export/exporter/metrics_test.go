package exporter

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/test/wait"
)

// metrics returns what the pod says about itself.
func (p *pod) metrics() string {
	p.Helper()
	answer, body := p.get(http.MethodGet, metricsPath)
	if answer.StatusCode != http.StatusOK {
		p.Fatalf("metrics: %s", answer.Status)
	}
	return string(body)
}

// mustHave fails the test unless the metrics have each of the lines.
func (p *pod) mustHave(metrics string, lines ...string) {
	p.Helper()
	for _, line := range lines {
		if !slices.Contains(strings.Split(metrics, "\n"), line) {
			p.Errorf("no %s in\n%s", line, metrics)
		}
	}
}

func TestMetrics_ofDisks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o400); err != nil {
		t.Fatal(err)
	}
	p := start(t, podspec.Config{Namespace: "ns", Name: "web", UID: "export", Volumes: []podspec.Volume{{Name: "web", Path: path}}})
	p.get(http.MethodGet, podspec.RawPath("web"))
	p.get(http.MethodGet, podspec.RawPath("web"), "Range", "bytes=0-999")
	p.get(http.MethodGet, podspec.GzipPath("web"))
	p.get(http.MethodGet, podspec.RawPath("other"))
	p.get(http.MethodGet, podspec.RawPath("web"), server.TokenHeader, "wrong")
	metrics := p.metrics()
	p.mustHave(metrics,
		`varve_export_info{export="web",namespace="ns",version="devel"} 1`,
		`varve_export_sent_bytes_total{endpoint="raw",volume="web"} 1.049576e+06`,
		`varve_export_sent_bytes_total{endpoint="gzip",volume="web"} 1.048576e+06`,
		`varve_export_request_duration_seconds_count{endpoint="raw",volume="web"} 2`,
		`varve_export_responses_total{code="2xx",endpoint="raw"} 2`,
		`varve_export_responses_total{code="4xx",endpoint=""} 1`,
		`varve_export_refused_tokens_total{reason="wrong"} 1`,
		`varve_export_requests_in_flight 1`, // this one
	)
	if strings.Contains(metrics, "tunnel") {
		t.Error("an export of claims has a tunnel")
	}
}

// The metrics are the export's users' alone, and name nothing that a stranger or a client chose.
func TestMetrics_needTheTokenAndAreBounded(t *testing.T) {
	t.Parallel()
	p := start(t, podspec.Config{UID: "export", Backup: &podspec.Backup{Name: "b", UID: "uid", Volumes: []string{"root"}}})
	for path, c := range map[string]struct {
		method, token string
		want          int
	}{
		metricsPath:        {http.MethodGet, "wrong", http.StatusUnauthorized},
		metricsPath + "?a": {http.MethodGet, "", http.StatusUnauthorized},
		metricsPath + "/x": {http.MethodGet, "the clients'", http.StatusNotFound},
		metricsPath + "?b": {http.MethodPost, "the clients'", http.StatusMethodNotAllowed},
	} {
		if answer, body := p.get(c.method, path, server.TokenHeader, c.token); answer.StatusCode != c.want || bytes.Contains(body, []byte("varve_")) {
			t.Errorf("%s %s: %s", c.method, path, answer.Status)
		}
	}
	series := func() int { return strings.Count(p.metrics(), "\n") }
	p.get(http.MethodGet, "/exports/a-1/data")
	p.get(http.MethodGet, "/b-1")
	series() // asking is counted, too
	before := series()
	for i := range 50 {
		for _, path := range []string{"/exports/a%d/data", "/exports/root/e%d", "/b%d", "/exports/stream?volume=c%d"} {
			p.get(http.MethodGet, fmt.Sprintf(path, i))
		}
	}
	if after := series(); after > before+5 {
		t.Errorf("%d lines have become %d", before, after)
	}
}

func TestMetrics_ofABackup(t *testing.T) {
	t.Parallel()
	p := start(t, podspec.Config{UID: "export", Backup: &podspec.Backup{Name: "b", UID: "uid", Volumes: []string{"root"}}})
	p.mustHave(p.metrics(), `varve_export_tunnel_connected 0`, `varve_export_tunnel_sessions_total 0`)
	root := exporttest.NewVolume("root", 5<<20, false, 4)
	offer := func(key string) (stop func()) {
		ctx, disconnect := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- tunnel.Run(ctx, tunnel.Config{
				Address: p.addresses[podspec.TunnelPort], ServerName: "localhost", BackupUID: "uid",
				CA: func() (*x509.CertPool, error) {
					return p.client.Transport.(*http.Transport).TLSClientConfig.RootCAs, nil
				},
				Token: func() ([]byte, error) { return tunnel.Token([]byte(key), "uid"), nil },
			}, exporttest.Volumes{"root": root}, []export.Info{root.Info()})
		}()
		return func() {
			disconnect()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	has := func(line string) func() bool {
		return func() bool { return strings.Contains(p.metrics(), "\n"+line+"\n") }
	}
	stop := offer("another key")
	wait.Until(t, time.Minute, "a refused proof", func() bool {
		return !has(`varve_export_tunnel_refused_connections_total{reason="proof"} 0`)()
	})
	stop()
	stop = offer("key")
	wait.Until(t, time.Minute, "the launcher", has("varve_export_tunnel_connected 1"))
	p.get(http.MethodGet, podspec.DataPath("root"))
	p.get(http.MethodGet, podspec.MapPath("root"))
	p.mustHave(p.metrics(), `varve_export_sent_bytes_total{endpoint="data",volume="root"} 5.24288e+06`,
		`varve_export_request_duration_seconds_count{endpoint="map",volume="root"} 1`, `varve_export_tunnel_sessions_total 1`)
	stop()
	wait.Until(t, time.Minute, "the end of the session", has("varve_export_tunnel_lost_sessions_total 1"))
	stop = offer("key")
	wait.Until(t, time.Minute, "another session", has("varve_export_tunnel_sessions_total 2"))
	stop()
}
