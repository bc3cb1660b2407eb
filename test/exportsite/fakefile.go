package exportsite

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/port"
)

// FakeFilePath is where a FakeFile has its disk.
const FakeFilePath = "/volumes/root/dir/disk.img"

// FakeFile is a fake of KubeVirt's export server: it has a disk as one file, answers requests for ranges, knows no map
// and no entity tags, and has another certificate after each start.
type FakeFile struct {
	*Site

	authority *authority.Authority
	// Requests counts the requests that had the token.
	Requests atomic.Int64
	// Asked, if it is not nil, is called for each of them.
	Asked func(*http.Request)
	// WithoutRanges: it sends everything, whatever it is asked for.
	WithoutRanges bool
}

// OpenFakeFile starts a server of a disk.
func OpenFakeFile(tb testing.TB, content []byte) *FakeFile {
	tb.Helper()
	address, release, err := port.Reserve()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(release)
	f := &FakeFile{Site: &Site{tb: tb, Address: address}, authority: authority.New(tb)}
	ca, err := os.ReadFile(filepath.Join(f.authority.Files(tb), "ca-cert.pem"))
	if err != nil {
		tb.Fatal(err)
	}
	f.CA = ca
	f.Start(content)
	tb.Cleanup(func() { f.Kill() })
	return f
}

// Start starts the server with another certificate, as another pod would, and with this content.
func (f *FakeFile) Start(content []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", f.Address)
	if err != nil {
		f.tb.Error(err)
		return
	}
	conns := &openConns{Listener: l}
	config := &tls.Config{Certificates: []tls.Certificate{f.authority.Issue(f.tb, "server", "localhost")}}
	srv := &http.Server{Handler: f.handler(content), TLSConfig: config, ReadHeaderTimeout: time.Minute}
	go srv.ServeTLS(conns, "", "") //nolint:errcheck // it says that it was closed
	f.stop = func() {
		_ = srv.Close()
		conns.reset()
	}
}

func (f *FakeFile) handler(content []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get(podspec.TokenHeader) != Token:
			w.WriteHeader(http.StatusUnauthorized)
			return
		case r.URL.Path != FakeFilePath:
			http.NotFound(w, r)
			return
		case f.WithoutRanges:
			r.Header.Del("Range")
		}
		f.Requests.Add(1)
		if f.Asked != nil {
			f.Asked(r)
		}
		http.ServeContent(w, r, "disk.img", time.Time{}, bytes.NewReader(content))
	})
}
