package storage_test

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/s3"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// Workers that read side by side keep their connections: a new one costs a TLS handshake, and on a network three times the way there and back.
func TestS3_keepsTheConnectionsOfItsReaders(t *testing.T) {
	t.Parallel()
	const readers, rounds = 8, 10
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(bucketOf("x", readers))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	storage.Register()
	st, err := blob.NewStorage(t.Context(), blob.ConnectionInfo{Type: "s3", Config: &s3.Options{
		BucketName: "bucket", Endpoint: server.Listener.Addr().String(), Region: "r", AccessKeyID: "key", SecretAccessKey: "secret",
		RootCA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}}, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close(context.WithoutCancel(t.Context())) })
	for range rounds {
		var group errgroup.Group
		for range readers {
			group.Go(func() error {
				var out bytesOut
				err := st.GetBlob(t.Context(), "x", 0, -1, &out)
				if err == nil && out.Length() == 0 {
					err = errors.New("nothing was read")
				}
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if n := opened.Load(); n > 2*readers {
		t.Errorf("%d readers have opened %d connections in %d rounds", readers, n, rounds)
	}
}

// bucketOf serves an object. It answers when as many requests for it are there as it has readers.
func bucketOf(name string, readers int) http.Handler {
	var mu sync.Mutex
	together, waiting := make(chan struct{}), 0
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/"+name) {
			http.Error(w, `<Error><Code>NoSuchKey</Code></Error>`, http.StatusNotFound)
			return
		}
		mu.Lock()
		all := together
		if waiting++; waiting == readers {
			close(all)
			together, waiting = make(chan struct{}), 0
		}
		mu.Unlock()
		select {
		case <-all:
		case <-r.Context().Done():
		}
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Unix(1, 0), strings.NewReader("content"))
	})
}

// bytesOut is a buffer for blobs.
type bytesOut struct{ strings.Builder }

func (b *bytesOut) Length() int { return b.Len() }
