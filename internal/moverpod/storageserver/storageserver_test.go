package storageserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

func TestMain(m *testing.M) {
	storage.Register()
	goleak.VerifyTestMain(m)
}

// start runs a server, and returns its client and its end.
func start(ctx context.Context, t *testing.T, directory string, c clock.WithTicker) (client *blobhttp.Client, ended chan error) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	key := blobhttp.NewKey()
	go func() {
		ended <- Run(ctx, Options{
			Directory: directory, KeyDigest: key.Digest(), Listener: l, Idle: time.Minute, Clock: c,
			Log: slog.New(slog.DiscardHandler),
		})
	}()
	client = blobhttp.NewClient("shelf", func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}).Authorize(key)
	t.Cleanup(client.Shut)
	return client, ended
}

// A directory that is not there is an answer, and one that appears is served.
func TestRun_servesADirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "plugins")
	ctx, cancel := context.WithCancel(t.Context())
	c, ended := start(ctx, t, dir, clock.RealClock{})
	if _, err := c.GetMetadata(t.Context(), "p1"); !errors.Is(err, errclass.NotFound) || errors.Is(err, blob.ErrBlobNotFound) {
		t.Errorf("no directory: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetMetadata(t.Context(), "p1"); !errors.Is(err, blob.ErrBlobNotFound) {
		t.Errorf("no blob: %v", err)
	}
	if err := c.PutBlob(t.Context(), "p1", storage.Bytes("x"), blob.PutOptions{}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	st, err := storage.Location{Directory: dir}.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := st.GetMetadata(t.Context(), "p1"); err != nil || m.Length != 1 {
		t.Errorf("%v %v", m, err)
	}
	if err := st.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Somebody else who forwards a port to the pod gets nothing, and does not keep the pod.
func TestServer_answersItsCommandAlone(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(time.Unix(0, 0))
	s := &server{Options: Options{Clock: c, Idle: time.Minute, KeyDigest: blobhttp.NewKey().Digest()}, asked: c.Now()}
	c.Step(time.Minute)
	for _, path := range []string{"/v1/ping", "/v1/blobs"} {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != errclass.HTTPStatus(errclass.Denied) || !s.isIdle() {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// While the directory is being opened, which takes long if its server is away, the pod answers that it is there.
func TestServer_answersWhileItOpens(t *testing.T) {
	t.Parallel()
	s := &server{Options: Options{Clock: clock.RealClock{}, Idle: time.Minute}}
	s.opening.Lock()
	w := httptest.NewRecorder()
	s.watch(blobhttp.NewHandler(s.open)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/ping", nil))
	if w.Code != http.StatusOK || s.isIdle() {
		t.Error(w.Code)
	}
}

// A request that takes longer than anybody may be silent keeps the pod, and the time counts from its end.
func TestServer_isNotIdleWhileItServes(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(time.Unix(0, 0))
	s := &server{Options: Options{Clock: c, Idle: time.Minute}}
	var during, after bool
	s.watch(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		c.Step(time.Hour)
		during = s.isIdle()
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	after = s.isIdle()
	c.Step(time.Minute)
	if during || after || !s.isIdle() {
		t.Error(during, after, s.isIdle())
	}
}

// It ends when nobody asks any more, and not while somebody does, however rarely.
func TestRun_endsWhenNobodyAsks(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(time.Unix(0, 0))
	client, ended := start(t.Context(), t, t.TempDir(), c)
	for range 10 {
		if err := client.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Step(45 * time.Second)
		select {
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		default:
		}
	}
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(time.Millisecond):
			c.Step(15 * time.Second)
		}
	}
}
