package repoaccess

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cluster/clustertest"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

// forwarded returns a directory that is served through an API server that forwards ports. The first way to it, if there are any, leads to another
// address.
func forwarded(t *testing.T, first ...string) *podStorage {
	t.Helper()
	st, err := storage.Location{Directory: t.TempDir()}.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close(context.WithoutCancel(t.Context())) })
	pod := httptest.NewServer(blobhttp.NewHandler(func(context.Context) (blob.Storage, error) { return st, nil }))
	t.Cleanup(pod.Close)
	ways := make(chan string, len(first))
	for _, address := range first {
		ways <- address
	}
	forwarding := &clustertest.Forwarding{To: func(string) string {
		select {
		case address := <-ways:
			return address
		default:
			return pod.Listener.Addr().String()
		}
	}}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path.Base(r.URL.Path) == "portforward" {
			forwarding.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "pod"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
	}))
	t.Cleanup(api.Close)
	flags := genericclioptions.NewConfigFlags(true)
	flags.APIServer, flags.KubeConfig = &api.URL, ptr.To("/dev/null")
	c, err := cluster.Connect(flags, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	forward := c.Forward("varve", "pod", 1)
	t.Cleanup(forward.Close)
	client := blobhttp.NewClient("shelf", forward.Dial)
	t.Cleanup(client.Shut)
	return &podStorage{forward: forward, blobs: client}
}

// The blobs of all workers share one connection to the API server. One that waits for its turn must not hold up those that it waits for.
func TestForwarded_takesTheBlobsOfAllWorkers(t *testing.T) {
	t.Parallel()
	st, err := storage.Location{Served: forwarded(t).blobs}.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	pack := make([]byte, 21<<20)
	var group errgroup.Group
	for i := range 2 * repository.DefaultWorkers {
		group.Go(func() error {
			return st.PutBlob(t.Context(), blob.ID(fmt.Sprint("p", i)), storage.Bytes(pack), blob.PutOptions{})
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// A way to the pod that has become silent is not the way any more, and what was asked for is asked for again.
func TestForwarded_leavesASilentWay(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // It takes connections, and nothing comes.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	p := forwarded(t, silent.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.keepAlive(ctx, time.Millisecond, time.Second, time.Hour) }()
	if err := p.blobs.PutBlob(t.Context(), "p1", storage.Bytes("content"), blob.PutOptions{}); err != nil {
		t.Error(err)
	}
	cancel()
	<-ended
}

// A way that is busy is not silent, however late the answers come: what is on its way would be lost.
func TestForwarded_keepsABusyWay(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = busy.Close() })
	connected := make(chan struct{}, 100)
	go func() {
		for {
			c, err := busy.Accept()
			if err != nil {
				return
			}
			connected <- struct{}{}
			go func() {
				for err == nil {
					_, err = io.WriteString(c, "HTTP/1.1 102 Processing\r\n\r\n")
					time.Sleep(time.Millisecond)
				}
			}()
		}
	}()
	p := forwarded(t, busy.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group errgroup.Group
	group.Go(func() error { p.keepAlive(ctx, time.Millisecond, 3*time.Second, time.Hour); return nil })
	answered := make(chan error, 1)
	group.Go(func() error { answered <- p.blobs.Ping(ctx); return nil })
	for range 4 { // the request, and three of keepAlive, each after the timeout of the one before
		select {
		case <-connected:
		case err := <-answered:
			cancel()
			t.Fatalf("the way was left: %v", err)
		}
	}
	cancel()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
