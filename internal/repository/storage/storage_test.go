package storage_test

import (
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/blob/s3"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
	"github.com/varvebackup/varve/internal/repository/storage/storagetest"
	"github.com/varvebackup/varve/test/verdict"
)

func newDirectory(t *testing.T) blob.Storage {
	t.Helper()
	st, err := storage.NewDirectory(t.Context(), &filesystem.Options{Path: t.TempDir()}, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return st
}

// What is wrapped around a storage keeps the contract of the storage.
func TestStorages_keepTheContract(t *testing.T) {
	t.Parallel()
	hidden := func(id blob.ID) bool { return id == "hidden" }
	for name, wrap := range map[string]func(blob.Storage) blob.Storage{
		"directory":      func(st blob.Storage) blob.Storage { return st },
		"stall detector": func(st blob.Storage) blob.Storage { return storage.NewStallDetector(st, time.Minute) },
		"guard":          storage.NewGuard,
		"patient": func(st blob.Storage) blob.Storage {
			return storage.NewPatient(st, &storage.Patience{Limit: time.Minute})
		},
		"view": func(st blob.Storage) blob.Storage { return storage.NewView(st, nil, nil) },
		"view that hides": func(st blob.Storage) blob.Storage {
			return storage.NewView(st, hidden, map[blob.ID][]byte{"hidden": {1}})
		},
		"quiet deletions": func(st blob.Storage) blob.Storage { return storage.NewQuietDeletions(st) },
		"all of them": func(st blob.Storage) blob.Storage {
			return storage.NewQuietDeletions(storage.NewView(storage.NewGuard(storage.NewStallDetector(st, time.Minute)), hidden, nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storagetest.Run(t, func(t *testing.T) blob.Storage { return wrap(newDirectory(t)) })
		})
	}
}

// A storage that another process serves keeps the contract, too.
func TestServed_keepsTheContract(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(t *testing.T) blob.Storage {
		t.Helper()
		dir := newDirectory(t)
		server := httptest.NewServer(blobhttp.NewHandler(func(context.Context) (blob.Storage, error) { return dir, nil }))
		t.Cleanup(server.Close)
		c := blobhttp.NewClient("shelf", func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
		})
		t.Cleanup(c.Shut)
		at := storage.Location{Served: c}
		st, err := at.Open(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if got := storage.Describe(st.ConnectionInfo()); got != "shelf" || at.String() != got {
			t.Errorf("it is called %q and %q", got, at)
		}
		if _, err := at.Open(t.Context(), true); !errors.Is(err, errclass.Invalid) {
			t.Errorf("it is made: %v", err)
		}
		return st
	})
}

// No request finds what a view hides, and what it replaces has the other content.
func TestView_hidesAndReplaces(t *testing.T) {
	t.Parallel()
	st := newDirectory(t)
	for _, id := range []blob.ID{"x1", "p1", "p2"} {
		if err := st.PutBlob(t.Context(), id, storage.Bytes("stored"), blob.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	v := storage.NewView(st, storage.IsIndex, map[blob.ID][]byte{"p1": []byte("shown instead")})
	read := func(id blob.ID, offset, length int64) string {
		t.Helper()
		var out storage.Buffer
		if err := v.GetBlob(t.Context(), id, offset, length, &out); err != nil {
			return err.Error()
		}
		return out.String()
	}
	for _, c := range []struct {
		id             blob.ID
		offset, length int64
		want           string
	}{
		{"x1", 0, -1, blob.ErrBlobNotFound.Error()},
		{"p1", 0, -1, "shown instead"},
		{"p1", 6, 7, "instead"},
		{"p2", 0, -1, "stored"},
	} {
		if got := read(c.id, c.offset, c.length); got != c.want {
			verdict.Errorf(t, "%d bytes of %s from %d on: %q, want %q", c.length, c.id, c.offset, got, c.want)
		}
	}
	if _, err := v.GetMetadata(t.Context(), "x1"); !errors.Is(err, blob.ErrBlobNotFound) {
		t.Errorf("metadata of what is hidden: %v", err)
	}
	if all, err := storage.ListBlobs(t.Context(), v, ""); err != nil || len(all) != 2 {
		t.Errorf("a list has %v, %v", all, err)
	}
	v.Hide(nil)
	v.Replace("p1", nil)
	if a, b := read("x1", 0, -1), read("p1", 0, -1); a != "stored" || b != "stored" {
		verdict.Errorf(t, "what is shown again: %q, %q", a, b)
	}
}

// failing is a storage that refuses deletions.
type failing struct {
	blob.Storage

	err error
}

func (f *failing) DeleteBlob(ctx context.Context, id blob.ID) error {
	if f.err != nil {
		return f.err
	}
	return f.Storage.DeleteBlob(ctx, id)
}

// After the first deletion that fails nothing is deleted, and the failure is kept.
func TestQuietDeletions_endWithTheFirstFailure(t *testing.T) {
	t.Parallel()
	st := newDirectory(t)
	if err := st.PutBlob(t.Context(), "p1", storage.Bytes("stored"), blob.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	refused := &failing{st, errors.New("refused")}
	d := storage.NewQuietDeletions(refused)
	if err := d.DeleteBlob(t.Context(), "p1"); err != nil || !errors.Is(d.Failure(), refused.err) {
		t.Errorf("%v, then %v", err, d.Failure())
	}
	first := refused.err
	refused.err = nil
	if err := d.DeleteBlob(t.Context(), "p1"); err != nil || !errors.Is(d.Failure(), first) {
		t.Errorf("%v, then %v", err, d.Failure())
	}
	if _, err := st.GetMetadata(t.Context(), "p1"); err != nil {
		t.Errorf("what was to be deleted after a failure: %v", err)
	}
}

// secretStorage is a storage with keys.
type secretStorage struct{ blob.Storage }

func (secretStorage) ConnectionInfo() blob.ConnectionInfo {
	return blob.ConnectionInfo{Type: "s3", Config: &s3.Options{BucketName: "bucket", SecretAccessKey: "the secret key"}}
}

// The configuration that kopia reads is in memory, and the storage's keys are not in it.
func TestView_configuresWithoutKeys(t *testing.T) {
	t.Parallel()
	v := storage.NewView(secretStorage{newDirectory(t)}, nil, nil)
	file, remove, err := v.Configure(repo.ClientOptions{Hostname: "pod"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(config), "pod") || strings.Contains(string(config), "secret") {
		t.Errorf("%s, %v", config, err)
	}
	if target, err := os.Readlink(file); err != nil || !strings.HasPrefix(target, "/memfd:") {
		t.Errorf("%s: %v", target, err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
}
