package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/varvebackup/varve/internal/cli/cluster/clustertest"
	"github.com/varvebackup/varve/internal/errclass"
)

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
	f := c.Forward("shop", "virt-export-web", 8443)
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
	to := echo(t)
	server := &clustertest.Forwarding{To: func(string) string { return to }}
	api := httptest.NewServer(server)
	t.Cleanup(api.Close)
	f := newForwarder(t, api, corev1.PodRunning)
	talk(t, f)
	talk(t, f)
	if got := server.Paths(); len(got) != 1 || got[0] != "/api/v1/namespaces/shop/pods/virt-export-web/portforward" {
		t.Errorf("forwards of %v for two connections", got)
	}
	f.mu.Lock()
	ended := f.ended
	f.mu.Unlock()
	server.Cut()
	<-ended
	talk(t, f)
	if got := server.Paths(); len(got) != 2 {
		t.Errorf("%d forwards", len(got))
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
