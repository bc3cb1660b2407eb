package upload_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/upload"
	"github.com/varvebackup/varve/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pod is the listener of a source pod.
type pod struct {
	*testing.T
	*upload.Listener

	address string
}

func newPod(t *testing.T) *pod {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{t, upload.NewListener(l, "debian", clock.RealClock{}, slog.New(slog.DiscardHandler)), l.Addr().String()}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// connect makes a connection of a session.
func (p *pod) connect(s upload.Session) (net.Conn, error) {
	p.Helper()
	conn, err := net.Dial("tcp", p.address)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.Close() })
	return conn, s.Greet(p.Context(), conn)
}

// Connections that nobody uses make way for newer ones, because they may have broken without anybody having noticed it.
// One that is known to be broken is not given to anybody.
func TestListener_keepsAFewConnections(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	s := upload.NewSession()
	ended := make(chan net.Conn, 10)
	for range 10 {
		conn, err := p.connect(s)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = conn.Read(make([]byte, 1))
			ended <- conn
		}()
	}
	<-ended
	<-ended
	select {
	case conn := <-ended:
		t.Errorf("%s has ended, too", conn.LocalAddr())
	default:
	}
	for range 8 {
		conn, err := p.DialContext(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		<-ended
	}
	if p.IsConnected() {
		t.Error("a connection is left")
	}
}

func TestListener_noticesBrokenConnections(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	conn, err := p.connect(upload.NewSession())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	err = wait.For(t.Context(), time.Minute, "nobody is connected", func(context.Context) (bool, string, error) {
		return !p.IsConnected(), "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	speaks, err := p.connect(upload.NewSession())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(speaks, "HTTP/1.1 200 OK") // before it is asked
	if n, err := speaks.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestListener_servesOneSession(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	one, two := upload.NewSession(), upload.NewSession()
	first, err := p.connect(one)
	if err != nil || !p.IsConnected() {
		t.Fatalf("connected %t: %v", p.IsConnected(), err)
	}
	if _, err := p.connect(two); !errors.Is(err, upload.ErrBusy) || !errors.Is(err, errclass.Conflict) {
		t.Errorf("another session: %v", err)
	}
	second, err := p.connect(one)
	if err != nil {
		t.Errorf("the same session: %v", err)
	}
	_, _ = first.Close(), second.Close()
	err = wait.For(t.Context(), time.Minute, "the other session", func(context.Context) (bool, string, error) {
		_, err := p.connect(two)
		return err == nil, "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.connect(one); !errors.Is(err, upload.ErrBusy) {
		t.Errorf("the session that has ended: %v", err)
	}
}

func TestListener_endsWhatWaits(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := upload.NewListener(l, "debian", clock.RealClock{}, slog.New(slog.DiscardHandler))
	waits := make(chan error, 1)
	go func() {
		_, err := p.DialContext(t.Context(), "", "")
		waits <- err
	}()
	silent, err := net.Dial("tcp", l.Addr().String()) // It never says whose it is.
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waits; !errors.Is(err, net.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestOpenFile_refuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, words := range map[string]string{
		dir: "is not a regular file", empty: "is empty", filepath.Join(dir, "absent"): "no such file",
	} {
		if _, err := upload.OpenFile(path); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// What is written to a file, or put in its place, is another version of it. Parts of two versions are never mixed.
func TestFile_isOneVersion(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *upload.File {
		t.Helper()
		f, err := upload.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	ask := func(f *upload.File, tag string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Header.Set("Range", "bytes=3-")
		if tag != "" {
			r.Header.Set("If-Range", tag)
		}
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		return w
	}
	write("abcdef")
	f := open()
	answer := ask(f, "")
	tag := answer.Header().Get("ETag")
	if answer.Code != http.StatusPartialContent || answer.Body.String() != "def" || f.Position() != 6 {
		t.Errorf("answer %d %q, position %d", answer.Code, answer.Body, f.Position())
	}
	again := open()
	if answer := ask(again, tag); answer.Code != http.StatusPartialContent || answer.Body.String() != "def" {
		t.Errorf("answer %d %q", answer.Code, answer.Body)
	}
	if got := again.HowItBegan(); got != (upload.Begin{Asked: true, Continues: true, At: 3}) {
		t.Errorf("it began with %+v", got)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	write("ABCDEF")
	if answer := ask(f, tag); answer.Body.String() != "def" || f.Err() == nil && answer.Code != http.StatusPartialContent {
		t.Errorf("the file that is open: %d %q", answer.Code, answer.Body)
	}
	other := open()
	if answer := ask(other, tag); answer.Code != http.StatusOK || answer.Body.String() != "ABCDEF" {
		t.Errorf("another file: %d %q", answer.Code, answer.Body)
	}
	if got := other.HowItBegan(); got != (upload.Begin{Asked: true, Replaces: true}) || other.Position() != 6 {
		t.Errorf("it began with %+v, position %d", got, other.Position())
	}
	if err := os.Chtimes(path, time.Time{}, time.Unix(1_000_000, 1)); err != nil { // as a write does
		t.Fatal(err)
	}
	if answer := ask(other, tag); answer.Code != http.StatusServiceUnavailable ||
		!errors.Is(other.Err(), errclass.Conflict) {
		t.Errorf("a file that was changed: %d, %v", answer.Code, other.Err())
	}
}

// A command that finds another one there waits for it, and gives up after a while.
func TestCommand_givesUpWhenAnotherStays(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	if _, err := p.connect(upload.NewSession()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, []byte("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := upload.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fake := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	told := make(chan error, 1000)
	ended := make(chan error, 1)
	go func() {
		command := &upload.Command{
			File: file, Clock: fake, Notify: func(err error) { told <- err },
			Dial: func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", p.address) },
		}
		ended <- command.Run(t.Context())
	}()
	if err := <-told; !errors.Is(err, upload.ErrBusy) {
		t.Errorf("told %v", err)
	}
	for range 10 {
		select {
		case err := <-ended:
			t.Fatalf("it ended early: %v", err)
		default:
		}
		if err := wait.For(t.Context(), time.Minute, "a pause", func(context.Context) (bool, string, error) {
			return fake.HasWaiters(), "", nil
		}); err != nil {
			t.Fatal(err)
		}
		fake.Step(time.Second)
	}
	go func() {
		for t.Context().Err() == nil && len(ended) == 0 {
			fake.Step(time.Minute)
		}
	}()
	if err := <-ended; !errors.Is(err, upload.ErrBusy) || !strings.Contains(err.Error(), "run this one again") {
		t.Errorf("error %v", err)
	}
}
