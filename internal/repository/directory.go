package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/content"
	"golang.org/x/sys/unix"
)

// directoryStorage is a directory that the loss of power leaves as it was; kopia leaves it to the kernel when blobs are written. A blob has its
// content before it has its name. Packs, with their names, are durable before the index that names them, and that is before PutBlob
// returns: an index without its packs would make the next backup believe that they need not be stored.
type directoryStorage struct {
	blob.Storage

	dir *os.File
}

// newDirectory opens a directory, or makes it.
func newDirectory(ctx context.Context, o *filesystem.Options, create bool) (blob.Storage, error) {
	st, err := filesystem.New(ctx, o, create)
	if err != nil {
		return nil, err
	}
	// Opened now, it is told of all that cannot be written from now on.
	dir, err := os.Open(o.Path)
	if err != nil {
		return nil, errors.Join(err, st.Close(ctx))
	}
	return &directoryStorage{Storage: st, dir: dir}, nil
}

func (d *directoryStorage) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	switch {
	case slices.ContainsFunc(momentary, func(prefix blob.ID) bool { return strings.HasPrefix(string(id), string(prefix)) }):
		return d.Storage.PutBlob(ctx, id, data, o)
	case slices.ContainsFunc(namedByIndexes, func(prefix blob.ID) bool { return strings.HasPrefix(string(id), string(prefix)) }):
		return d.Storage.PutBlob(ctx, id, durableBytes{data}, o)
	}
	if err := d.sync(); err != nil {
		return err
	}
	if err := d.Storage.PutBlob(ctx, id, durableBytes{data}, o); err != nil {
		return err
	}
	return d.sync()
}

// momentary begin the names of blobs that nobody misses after a loss of power: what kopia writes for people, and what says that a deletion runs.
var momentary = []blob.ID{"_log", deletingPrefix}

// namedByIndexes begin the names of blobs that mean nothing without an index: packs, and what says who is about to write one.
var namedByIndexes = append([]blob.ID{content.BlobIDPrefixSession}, content.PackBlobIDPrefixes...)

// sync makes everything durable that the file system has, names too.
func (d *directoryStorage) sync() error {
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Syncfs(int(d.dir.Fd()))
	}
	return os.NewSyscallError("syncfs of "+d.dir.Name(), err)
}

func (d *directoryStorage) Close(ctx context.Context) error {
	return errors.Join(d.Storage.Close(ctx), d.dir.Close())
}

// durableBytes are a blob that is durable when it has been written.
type durableBytes struct{ blob.Bytes }

// WriteTo implements io.WriterTo. kopia gives it the file, which has the blob's name only afterwards.
func (b durableBytes) WriteTo(w io.Writer) (int64, error) {
	f, ok := w.(interface{ Sync() error })
	if !ok {
		return 0, fmt.Errorf("a blob goes to a %T, which cannot be synced", w)
	}
	n, err := b.Bytes.WriteTo(w)
	if err == nil {
		err = f.Sync()
	}
	return n, err
}
