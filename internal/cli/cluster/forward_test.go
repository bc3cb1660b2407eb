package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/varvebackup/varve/internal/errclass"
)

// forwarding is an API server that forwards ports of pods to a listener, with SPDY alone, as older ones do.
type forwarding struct {
	t  *testing.T
	to string
	mu sync.Mutex
	// forwards are those that are open, and begun counts all of them.
	forwards []httpstream.Connection
	begun    int
	paths    []string
}

func (f *forwarding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "only SPDY", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		f.t.Error(err)
		return
	}
	streams := make(chan httpstream.Stream, 16)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	f.mu.Lock()
	f.forwards, f.begun, f.paths = append(f.forwards, conn), f.begun+1, append(f.paths, r.URL.Path)
	f.mu.Unlock()
	for {
		select {
		case <-conn.CloseChan():
			return
		case s := <-streams:
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
				go f.forward(s)
			}
		}
	}
}

func (f *forwarding) forward(s httpstream.Stream) {
	c, err := net.Dial("tcp", f.to)
	if err != nil {
		_ = s.Reset()
		return
	}
	go func() { _, _ = io.Copy(c, s); _ = c.Close() }()
	_, _ = io.Copy(s, c)
	_ = s.Close()
}

// cut ends all forwards, as the end of their pod does.
func (f *forwarding) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.forwards {
		_ = c.Close()
	}
	f.forwards = nil
}

// echo answers with what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return l.Addr().String()
}

func newForwarder(t *testing.T, api *httptest.Server, phase corev1.PodPhase) *Forwarder {
	t.Helper()
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "virt-export-web"}, Status: corev1.PodStatus{Phase: phase}}
	c := &Client{WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithObjects(pod).Build(), Namespace: "shop", config: &rest.Config{Host: api.URL}}
	f := c.Forward("virt-export-web", 8443)
	t.Cleanup(f.Close)
	return f
}

// talk sends a text through a new connection, and wants it back.
func talk(t *testing.T, f *Forwarder) {
	t.Helper()
	c, err := f.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // everything has come
	got := make([]byte, 5)
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Errorf("%q: %v", got, err)
	}
}

func TestForward_goesToTheNextPod(t *testing.T) {
	t.Parallel()
	server := &forwarding{t: t, to: echo(t)}
	api := httptest.NewServer(server)
	t.Cleanup(api.Close)
	f := newForwarder(t, api, corev1.PodRunning)
	talk(t, f)
	talk(t, f)
	if server.begun != 1 || server.paths[0] != "/api/v1/namespaces/shop/pods/virt-export-web/portforward" {
		t.Errorf("%d forwards of %v for two connections", server.begun, server.paths)
	}
	f.mu.Lock()
	ended := f.ended
	f.mu.Unlock()
	server.cut()
	<-ended
	talk(t, f)
	if server.begun != 2 {
		t.Errorf("%d forwards", server.begun)
	}
}

func TestForward_waitsForItsPod(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }))
	t.Cleanup(api.Close)
	if _, err := newForwarder(t, api, corev1.PodPending).Dial(t.Context()); !errors.Is(errclass.Of(err), errclass.Transient) {
		t.Errorf("a pod that does not run yet: %v", err)
	}
	gone := newForwarder(t, api, corev1.PodRunning)
	gone.pod = "other"
	if _, err := gone.Dial(t.Context()); !errors.Is(errclass.Of(err), errclass.Transient) {
		t.Errorf("a pod that is replaced: %v", err)
	}
	if _, err := newForwarder(t, api, corev1.PodRunning).Dial(t.Context()); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("an API server that refuses: %v", err)
	}
}
