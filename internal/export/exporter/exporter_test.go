package exporter

import (
	"bytes"
	"compress/gzip"
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
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/server"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// pod is an export pod on this machine.
type pod struct {
	*testing.T

	files       Files
	authorities []byte
	addresses   map[int]string
	client      *http.Client
}

// start runs the program with a configuration until the test ends.
func start(t *testing.T, config podspec.Config) *pod {
	t.Helper()
	dir := t.TempDir()
	signed := authority.New(t).Files(t)
	p := &pod{T: t, addresses: map[int]string{}, files: Files{
		Certificate: filepath.Join(signed, "server-cert.pem"), Key: filepath.Join(signed, "server-key.pem"),
		Token: filepath.Join(dir, "token"), TunnelToken: filepath.Join(dir, "tunnel"), Manifests: dir,
	}}
	var err error
	if p.authorities, err = os.ReadFile(filepath.Join(signed, "ca-cert.pem")); err != nil {
		t.Fatal(err)
	}
	for path, token := range map[string][]byte{p.files.Token: []byte("the clients'\n"), p.files.TunnelToken: tunnel.Token([]byte("key"), "uid")} {
		if err := os.WriteFile(path, token, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listeners := map[int]net.Listener{}
	for _, port := range []int{podspec.HTTPSPort, podspec.TunnelPort} {
		if listeners[port], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		p.addresses[port] = listeners[port].Addr().String()
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.authorities)
	p.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "localhost"}}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Options{
			Config: config, Files: p.files, Log: slog.New(slog.DiscardHandler),
			Listen: func(port int) (net.Listener, error) { return listeners[port], nil },
		})
	}()
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, l := range listeners {
			_ = l.Close() // a pod without a backup does not use one of them
		}
	})
	return p
}

// get requests a path and returns the status and the body.
func (p *pod) get(method, path string, header ...string) (*http.Response, []byte) {
	p.Helper()
	r, err := http.NewRequestWithContext(p.Context(), method, "https://"+p.addresses[podspec.HTTPSPort]+path, http.NoBody)
	if err != nil {
		p.Fatal(err)
	}
	r.Header.Set(server.TokenHeader, "the clients'")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := p.client.Do(r)
	if err != nil {
		p.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		p.Fatal(err)
	}
	return answer, body
}

func TestRun_servesDisksOfClaims(t *testing.T) {
	t.Parallel()
	disk := exporttest.NewVolume("disk", 3<<20+512, false, 9).Content
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, disk, 0o400); err != nil {
		t.Fatal(err)
	}
	p := start(t, podspec.Config{UID: "export", Volumes: []podspec.Volume{{Name: "web", Path: path}}})
	raw, zipped := podspec.RawPath("web"), podspec.GzipPath("web")
	if answer, _ := p.get(http.MethodGet, podspec.ReadinessPath); answer.StatusCode != http.StatusOK {
		t.Errorf("readiness: %s", answer.Status)
	}
	whole, body := p.get(http.MethodGet, raw)
	if whole.StatusCode != http.StatusOK || !bytes.Equal(body, disk) || whole.Header.Get("Accept-Ranges") != "bytes" {
		verdict.JudgeErrorf(t, whole.StatusCode == http.StatusOK && !bytes.Equal(body, disk), "raw: %s, %d bytes, %v", whole.Status, len(body), whole.Header)
	}
	answer, body := p.get(http.MethodGet, raw, "Range", "bytes=1048570-", "If-Range", whole.Header.Get("ETag"))
	if answer.StatusCode != http.StatusPartialContent || !bytes.Equal(body, disk[1048570:]) {
		verdict.JudgeErrorf(t, answer.StatusCode == http.StatusPartialContent, "range: %s, %d bytes", answer.Status, len(body))
	}
	answer, body = p.get(http.MethodHead, raw)
	if answer.StatusCode != http.StatusOK || answer.ContentLength != int64(len(disk)) || len(body) > 0 {
		t.Errorf("HEAD: %s, %d", answer.Status, answer.ContentLength)
	}
	answer, body = p.get(http.MethodGet, zipped)
	if z, err := gzip.NewReader(bytes.NewReader(body)); err != nil {
		t.Errorf("gzip: %s: %v", answer.Status, err)
	} else if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, disk) {
		verdict.Errorf(t, "gzip: %d bytes: %v", len(got), err)
	}
	for what, c := range map[string]struct {
		method, path string
		header       []string
		want         int
	}{
		"a wrong token":  {http.MethodGet, raw, []string{server.TokenHeader, "another"}, http.StatusUnauthorized},
		"another method": {http.MethodPost, raw, nil, http.StatusMethodNotAllowed},
		"a longer path":  {http.MethodGet, raw + "/x", nil, http.StatusNotFound},
		"another claim":  {http.MethodGet, podspec.RawPath("other"), nil, http.StatusNotFound},
		"a path upwards": {http.MethodGet, raw + "/../../../etc/passwd", nil, http.StatusNotFound},
		"beyond the end": {
			http.MethodGet, raw,
			[]string{"Range", "bytes=4000000-"},
			http.StatusRequestedRangeNotSatisfiable,
		},
		"another map": {http.MethodGet, podspec.MapPath("other"), nil, http.StatusNotFound},
	} {
		if answer, body := p.get(c.method, c.path, c.header...); answer.StatusCode != c.want || bytes.Contains(body, disk[:512]) {
			t.Errorf("%s: %s, want %d", what, answer.Status, c.want)
		}
	}
	// What a writer of the claim puts in the disk's place is not served: a link, a pipe, a directory, nothing.
	for _, replace := range []func() error{
		func() error { return os.Symlink(p.files.Key, path) },
		func() error { return unix.Mkfifo(path, 0o600) },
		func() error { return os.Mkdir(path, 0o700) },
	} {
		if err := errors.Join(os.Remove(path), replace()); err != nil {
			t.Fatal(err)
		}
		for _, request := range []string{podspec.ReadinessPath, raw, zipped} {
			if answer, body := p.get(http.MethodGet, request); answer.StatusCode != http.StatusServiceUnavailable || bytes.Contains(body, []byte("KEY")) {
				t.Errorf("%s of something else: %s", request, answer.Status)
			}
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{podspec.ReadinessPath, raw} {
		if answer, _ := p.get(http.MethodGet, path); answer.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s without a disk: %s", path, answer.Status)
		}
	}
}

// A machine may have written to the disk between two pods of an export: a download must not go on with the other one.
func TestRun_aLaterPodHasOtherTags(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	var tags []string
	for i := range 2 {
		if err := os.WriteFile(path, bytes.Repeat([]byte{byte(i)}, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
		p := start(t, podspec.Config{UID: "export", Volumes: []podspec.Volume{{Name: "web", Path: path}}})
		answer, _ := p.get(http.MethodHead, podspec.RawPath("web"))
		tags = append(tags, answer.Header.Get("ETag"))
		if i == 1 {
			if answer, body := p.get(http.MethodGet, podspec.RawPath("web"), "Range", "bytes=10-", "If-Range", tags[0]); answer.StatusCode != http.StatusOK || len(body) != 4096 {
				t.Errorf("resumed with the tag of the first pod: %s, %d bytes", answer.Status, len(body))
			}
		}
	}
	if tags[0] == "" || tags[0] == tags[1] {
		t.Errorf("tags %v", tags)
	}
}

func TestRun_servesABackupThroughTheTunnel(t *testing.T) {
	t.Parallel()
	p := start(t, podspec.Config{UID: "export", Backup: &podspec.Backup{Name: "b", UID: "uid", Volumes: []string{"root"}}})
	for _, path := range []string{podspec.ReadinessPath, podspec.DataPath("root")} {
		if answer, _ := p.get(http.MethodGet, path); answer.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s without a launcher: %s", path, answer.Status)
		}
	}
	root := exporttest.NewVolume("root", 5<<20, false, 4)
	ctx, disconnect := context.WithCancel(t.Context())
	launcher := make(chan error, 1)
	go func() {
		launcher <- tunnel.Run(ctx, tunnel.Config{
			Address: p.addresses[podspec.TunnelPort], ServerName: "localhost", BackupUID: "uid",
			CA: func() (*x509.CertPool, error) {
				return p.client.Transport.(*http.Transport).TLSClientConfig.RootCAs, nil
			},
			Token: func() ([]byte, error) { return tunnel.Token([]byte("key"), "uid"), nil },
		}, exporttest.Volumes{"root": root}, []export.Info{root.Info()})
	}()
	isReady := func() bool {
		answer, _ := p.get(http.MethodGet, podspec.ReadinessPath)
		return answer.StatusCode == http.StatusOK
	}
	wait.Until(t, time.Minute, "the launcher", isReady)
	answer, body := p.get(http.MethodGet, podspec.DataPath("root"), "Range", "bytes=4097-")
	if answer.StatusCode != http.StatusPartialContent || !bytes.Equal(body, root.Content[4097:]) {
		verdict.JudgeErrorf(t, answer.StatusCode == http.StatusPartialContent, "data: %s, %d bytes", answer.Status, len(body))
	}
	if answer, body := p.get(http.MethodGet, podspec.MapPath("root")); answer.StatusCode != http.StatusOK || !bytes.Contains(body, fmt.Appendf(nil, `"size":%d`, 5<<20)) {
		t.Errorf("map: %s %s", answer.Status, body)
	}
	disconnect()
	if err := <-launcher; err != nil {
		t.Error(err)
	}
	wait.Until(t, time.Minute, "the pod to notice", func() bool { return !isReady() })
}
