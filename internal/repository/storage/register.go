package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/blob/s3"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

// ignoreRewriteErrors is the variable that makes kopia go on if it cannot read a content that nothing refers to any more. Without
// it, a damaged pack would end all maintenance, even after the restore points that used it were deleted. kopia has no other way
// to ask for that.
const ignoreRewriteErrors = "KOPIA_IGNORE_MAINTENANCE_REWRITE_ERROR"

// idleConnections is how many connections to a server stay open between requests: more than there are workers. Go's default is two, so that
// of eight workers six make a new connection for each request.
const idleConnections = 64

var (
	registerOnce sync.Once
	registered   atomic.Bool
)

// Register makes kopia open directories, buckets and views as this package has them, in the whole process. Call it once before
// anything else of this package or of kopia: main does, and TestMain. Further calls do nothing.
//
// kopia leaves no choice: a connection is a file that names its storage by type, and kopia looks the type up in a map of its own
// that belongs to the process and has no lock.
func Register() {
	registerOnce.Do(func() {
		blob.AddSupportedStorage("filesystem", filesystem.Options{}, guardOpened(NewDirectory)) // instead of kopia's
		blob.AddSupportedStorage("s3", s3.Options{}, guardOpened(newS3))                        // instead of kopia's
		blob.AddSupportedStorage(roleType, roleOptions{}, guardOpened(newRoleS3))
		blob.AddSupportedStorage(blobhttp.Type, blobhttp.Connection{}, guardOpened(openServed))
		blob.AddSupportedStorage(viewType, viewConfig{}, openView)
		if t, ok := http.DefaultTransport.(*http.Transport); ok { // kopia takes copies of it, and has no other setting
			t.MaxIdleConnsPerHost = max(t.MaxIdleConnsPerHost, idleConnections)
		}
		if err := os.Setenv(ignoreRewriteErrors, "1"); err != nil {
			panic(err) // The name of the variable is not valid.
		}
		registered.Store(true)
	})
}

// CheckRegistered fails if Register was not called: kopia would open storages of its own, without syncing what they store.
func CheckRegistered() error {
	if !registered.Load() {
		return errors.New("storage.Register was not called by this program")
	}
	return nil
}

// OpenConnected opens the storage that a connection's file describes, with the guard.
func OpenConnected(ctx context.Context, info blob.ConnectionInfo) (blob.Storage, error) {
	if err := CheckRegistered(); err != nil {
		return nil, err
	}
	return blob.NewStorage(ctx, info, false)
}

// guardOpened wraps what open returns, for connections.
func guardOpened[T any](open func(context.Context, *T, bool) (blob.Storage, error)) func(context.Context, *T, bool) (blob.Storage, error) {
	return func(ctx context.Context, o *T, create bool) (blob.Storage, error) {
		st, err := open(ctx, o, create)
		if err != nil {
			return nil, err
		}
		return NewGuard(st), nil
	}
}

// openServed opens what another process serves.
func openServed(_ context.Context, c *blobhttp.Connection, _ bool) (blob.Storage, error) {
	st, err := c.Open()
	if err != nil {
		return nil, err
	}
	return newServed(st), nil
}

// viewType is the type of storage in the configuration of a connection to a view.
const viewType = "varve-view"

type viewConfig struct {
	Key string `json:"key"`
}

// views holds the views that can be connected to, by their keys. It belongs to the process because kopia opens a storage by what
// is written in a connection's file, and a file cannot hold a view, only its key. A view is in it no longer than kopia takes to
// open the connection: see View.Configure.
var (
	views       sync.Map
	lastViewKey atomic.Int64
)

func openView(_ context.Context, c *viewConfig, _ bool) (blob.Storage, error) {
	v, ok := views.Load(c.Key)
	if !ok {
		return nil, fmt.Errorf("%w: there is no view %q", errclass.Invalid, c.Key)
	}
	return v.(blob.Storage), nil
}
