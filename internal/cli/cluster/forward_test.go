package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	ended := f.current.ended.Done()
	server.Cut()
	<-ended
	talk(t, f)
	if got := server.Paths(); len(got) != 2 {
		t.Errorf("%d forwards", len(got))
	}
}

// Whoever else uses this machine must not reach the pod: what serves a repository asks for no password. The test is alone, for it counts the
// ports of this process.
func TestForward_hasNoPort(t *testing.T) { //nolint:paralleltest // see above
	to := echo(t)
	api := httptest.NewServer(&clustertest.Forwarding{To: func(string) string { return to }})
	t.Cleanup(api.Close)
	before := listening(t)
	f := newForwarder(t, api, corev1.PodRunning)
	talk(t, f)
	if after := listening(t); after != before {
		t.Errorf("this process listens on %d ports, and on %d before it forwarded one", after, before)
	}
}

// listening counts the TCP ports that this process listens on.
func listening(t *testing.T) (ports int) {
	t.Helper()
	sockets := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, _ := os.Readlink(fd)
		sockets[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
	}
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		// sl, local_address, rem_address, st, tx_queue:rx_queue, tr:tm->when, retrnsmt, uid, timeout, inode (proc_pid_net(5))
		if fields := strings.Fields(line); fields[3] == "0A" && sockets[fields[9]] {
			ports++
		}
	}
	return ports
}

// A connection over a way that is broken says nothing any more. Once it is dropped, the next one takes another way.
func TestForward_drops(t *testing.T) {
	t.Parallel()
	to := echo(t)
	server := &clustertest.Forwarding{To: func(string) string { return to }}
	api := httptest.NewServer(server)
	t.Cleanup(api.Close)
	f := newForwarder(t, api, corev1.PodRunning)
	c, err := f.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := f.Moved()
	if _, err := c.Write(make([]byte, 1<<20)); err != nil || f.Moved() == before {
		t.Errorf("%d bytes were moved: %v", f.Moved()-before, err)
	}
	f.Drop()
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Error(err)
	}
	talk(t, f)
	if got := server.Paths(); len(got) != 2 {
		t.Errorf("%d forwards", len(got))
	}
	f.Close()
	if _, err := f.Dial(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// An API server that does not answer, because the node of the pod does not, keeps nobody from ending.
func TestForward_endsWhileItWaits(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}, 2), make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-answer }))
	t.Cleanup(api.Close)
	t.Cleanup(func() { close(answer) })
	f := newForwarder(t, api, corev1.PodRunning)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	go func() {
		<-asked
		cancel(stop)
	}()
	if _, err := f.Dial(ctx); !errors.Is(err, stop) {
		t.Error(err)
	}
	go func() {
		<-asked
		f.Close()
	}()
	if _, err := f.Dial(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// Whoever may not forward ports need not try again.
func TestForward_isForbidden(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := apierrors.NewForbidden(corev1.Resource("pods/portforward"), "virt-export-web", errors.New("no")).Status()
		status.APIVersion, status.Kind = "v1", "Status"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(status)
	}))
	t.Cleanup(api.Close)
	if _, err := newForwarder(t, api, corev1.PodRunning).Dial(t.Context()); !errors.Is(err, errclass.Denied) {
		t.Error(err)
	}
}

func TestForward_waitsForItsPod(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }))
	t.Cleanup(api.Close)
	if _, err := newForwarder(t, api, corev1.PodPending).Dial(t.Context()); errclass.Of(err) != errclass.Transient {
		t.Errorf("a pod that does not run yet: %v", err)
	}
	gone := newForwarder(t, api, corev1.PodRunning)
	gone.pod = "other"
	if _, err := gone.Dial(t.Context()); errclass.Of(err) != errclass.Transient {
		t.Errorf("a pod that is replaced: %v", err)
	}
	if _, err := newForwarder(t, api, corev1.PodRunning).Dial(t.Context()); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("an API server that refuses: %v", err)
	}
}
