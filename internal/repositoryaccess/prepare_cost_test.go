package repositoryaccess

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

// The controller prepares the repository of each namespace, with at most 512 MiB of memory. An index takes 33 bytes
// for each content that the repository holds: with 10 TiB in blocks of 256 KiB 1.4 GB.
func TestPrepare_readsTheFormatAloneWhateverIsStored(t *testing.T) {
	t.Parallel()
	directory := filepath.Join(t.TempDir(), "shop")
	id, err := prepare(t, at(directory))
	if err != nil {
		t.Fatal(err)
	}
	shelf := serveDirectory(t, directory)
	store := NewStore(time.Now, func(datamove.Access) repository.Location {
		return repository.Location{Served: shelf.client}
	})
	requests := func(a datamove.Access) []string {
		t.Helper()
		shelf.take()
		if got, err := store.Prepare(t.Context(), a, location.Lock{}); err != nil || got != id {
			t.Fatalf("%q %v", got, err)
		}
		return shelf.take()
	}
	again := datamove.Access{Password: testPassword, UniqueID: id}
	readOnly := again
	readOnly.ReadOnly = true
	empty := requests(again)
	for range 3 { // an index each
		storeContents(t, directory, 2000)
	}
	for _, a := range []datamove.Access{again, readOnly} {
		full := requests(a)
		if diff := cmp.Diff(empty, full); diff != "" && !a.ReadOnly {
			t.Errorf("it asks for more when something is stored (-empty +full):\n%s", diff)
		}
		for _, r := range full {
			if !asksForFormat(r) {
				t.Errorf("read-only %v: it asks for %s", a.ReadOnly, r)
			}
		}
	}
	again.Password = "x"
	shelf.take()
	if _, err := store.Prepare(t.Context(), again, location.Lock{}); !errors.Is(err, repository.ErrPassword) {
		t.Errorf("a wrong password: %v", err)
	}
	for _, r := range shelf.take() {
		if !asksForFormat(r) {
			t.Errorf("with a wrong password it asks for %s", r)
		}
	}
}

func asksForFormat(request string) bool {
	return slices.ContainsFunc(append(slices.Clone(storage.FormatBlobs), storage.FormatCopy), func(id blob.ID) bool {
		return strings.HasSuffix(request, "/"+string(id))
	})
}

// shelf serves a directory and notes what is asked for.
type shelf struct {
	client *blobhttp.Client
	mu     sync.Mutex
	asked  []string
}

// take returns what was asked for since the last call.
func (s *shelf) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func serveDirectory(t *testing.T, directory string) *shelf {
	t.Helper()
	st, err := repository.Location{Directory: directory}.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	s := &shelf{}
	handler := blobhttp.NewHandler(func(context.Context) (blob.Storage, error) { return st, nil })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r.Method+" "+r.URL.String())
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	s.client = blobhttp.NewClient("the shelf", func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	t.Cleanup(func() {
		s.client.Shut()
		server.Close()
		if err := st.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return s
}

// storeContents stores contents of 16 bytes: the index has an entry for each, whatever its length.
func storeContents(t *testing.T, directory string, n int) {
	t.Helper()
	at := repository.Location{Directory: directory}
	access, err := engine.ConnectInMemory(t.Context(), at, testPassword,
		engine.ConnectOptions{Host: "test", User: "test"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := engine.OpenConnection(t.Context(), access, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		var data [16]byte
		_, _ = rand.Read(data[8:])
		for i := range n {
			binary.LittleEndian.PutUint64(data[:], uint64(i)) //nolint:gosec // not negative
			o := w.NewObjectWriter(ctx, object.WriterOptions{Description: "BLOCK", Splitter: "FIXED-128K"})
			_, err := o.Write(data[:])
			if err == nil {
				_, err = o.Result()
			}
			if err := errors.Join(err, o.Close()); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, c.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}
