package storage

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

	"github.com/varvebackup/varve/internal/errclass"
)

// syncingDirectory is a directory that survives a loss of power. kopia by itself leaves it to the kernel when blobs are written.
// Here a blob's content is durable before the blob has its name. Packs and their names are durable before the index that names
// them, and the index is durable before PutBlob returns: an index without its packs would make the next backup believe that they
// need not be stored.
type syncingDirectory struct {
	blob.Storage

	dir *os.File
}

// NewDirectory opens a directory, and makes it if create is set.
func NewDirectory(ctx context.Context, o *filesystem.Options, create bool) (blob.Storage, error) {
	st, err := filesystem.New(ctx, o, create)
	if err != nil {
		return nil, markFull(err)
	}
	// Because dir is open from now on, it reports everything that cannot be written from now on.
	dir, err := os.Open(o.Path)
	if err != nil {
		return nil, errors.Join(err, st.Close(ctx))
	}
	return MarkFull(&syncingDirectory{Storage: st, dir: dir}), nil
}

func (d *syncingDirectory) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	switch {
	case slices.ContainsFunc(unsyncedPrefixes, func(prefix blob.ID) bool { return strings.HasPrefix(string(id), string(prefix)) }):
		return d.Storage.PutBlob(ctx, id, discardedBytes{data}, o)
	case slices.ContainsFunc(packPrefixes, func(prefix blob.ID) bool { return strings.HasPrefix(string(id), string(prefix)) }):
		return d.Storage.PutBlob(ctx, id, discardedBytes{syncedBytes{data}}, o)
	}
	if err := d.syncFileSystem(); err != nil {
		return err
	}
	if err := d.Storage.PutBlob(ctx, id, discardedBytes{syncedBytes{data}}, o); err != nil {
		return err
	}
	return d.syncFileSystem()
}

// unsyncedPrefixes lists the prefixes of blobs that nobody misses after a loss of power: what kopia writes for people, and what
// says that a deletion is running.
var unsyncedPrefixes = []blob.ID{"_log", DeletingPrefix}

// packPrefixes lists the prefixes of blobs that mean nothing without an index: packs, and the blobs that say who is about to
// write one.
var packPrefixes = append([]blob.ID{content.BlobIDPrefixSession}, content.PackBlobIDPrefixes...)

// syncFileSystem makes everything on the file system durable, including names.
func (d *syncingDirectory) syncFileSystem() error {
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Syncfs(int(d.dir.Fd()))
	}
	return os.NewSyscallError("syncfs of "+d.dir.Name(), err)
}

func (d *syncingDirectory) Close(ctx context.Context) error {
	return errors.Join(d.Storage.Close(ctx), d.dir.Close())
}

// syncedBytes is a blob that is durable once it has been written.
type syncedBytes struct{ blob.Bytes }

// WriteTo implements io.WriterTo. kopia passes it the file, which gets the blob's name only afterwards.
func (b syncedBytes) WriteTo(w io.Writer) (int64, error) {
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

// discardedBytes is a blob that leaves nothing behind if there is no room for it. kopia leaves what it has written, up to a whole pack,
// until maintenance removes it.
type discardedBytes struct{ blob.Bytes }

// WriteTo implements io.WriterTo. kopia passes it the file.
func (b discardedBytes) WriteTo(w io.Writer) (int64, error) {
	n, err := b.Bytes.WriteTo(w)
	if errclass.IsFull(err) {
		discardPartial(w)
	}
	return n, err
}
