package repoaccess

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"

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

// forwarded returns a client of a directory that is served through an API server that forwards ports.
func forwarded(t *testing.T) *blobhttp.Client {
	t.Helper()
	st, err := storage.Location{Directory: t.TempDir()}.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close(context.WithoutCancel(t.Context())) })
	pod := httptest.NewServer(blobhttp.NewHandler(func(context.Context) (blob.Storage, error) { return st, nil }))
	t.Cleanup(pod.Close)
	forwarding := &clustertest.Forwarding{To: func(string) string { return pod.Listener.Addr().String() }}
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
	return client
}

// The blobs of all workers share one connection to the API server. One that waits for its turn must not hold up those that it waits for.
func TestForwarded_takesTheBlobsOfAllWorkers(t *testing.T) {
	t.Parallel()
	st, err := storage.Location{Served: forwarded(t)}.Open(t.Context(), false)
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
