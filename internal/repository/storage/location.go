package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/blob/s3"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

// Location is where a repository's blobs are: exactly one of its fields is set.
type Location struct {
	// Directory is an absolute path.
	Directory string
	S3        *S3
	// Served is a storage that another process has. It holds a repository already: nobody makes one there.
	Served *blobhttp.Client
}

// String returns the location without its keys.
func (l Location) String() string {
	switch {
	case l.S3 != nil:
		return "s3://" + l.S3.Endpoint + "/" + l.S3.Bucket + "/" + l.S3.Prefix
	case l.Served != nil:
		return l.Served.DisplayName()
	}
	return l.Directory
}

// Open opens the storage of a location. It makes a directory that does not exist if create is set.
func (l Location) Open(ctx context.Context, create bool) (blob.Storage, error) {
	switch {
	case l.S3 != nil && l.Directory == "" && l.Served == nil:
		return l.S3.openBucket(ctx)
	case l.S3 == nil && filepath.IsAbs(l.Directory) && l.Served == nil:
		return openDirectory(ctx, l.Directory, create)
	case l.S3 == nil && l.Directory == "" && l.Served != nil && !create:
		return newServed(l.Served), nil
	}
	return nil, fmt.Errorf("%w: location %q: an absolute directory or an S3 bucket", errclass.Invalid, l)
}

func openDirectory(ctx context.Context, path string, create bool) (blob.Storage, error) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("%w: %s is not a directory", errclass.Invalid, path)
	}
	if create {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, markFull(err)
		}
	}
	st, err := NewDirectory(ctx, &filesystem.Options{Path: path}, create)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", path, err)
	}
	return st, nil
}

// Describe returns the name of a storage, without its keys.
func Describe(i blob.ConnectionInfo) string {
	switch o := i.Config.(type) {
	case *filesystem.Options:
		return Location{Directory: o.Path}.String()
	case *s3.Options:
		return Location{S3: &S3{Endpoint: o.Endpoint, Bucket: o.BucketName, Prefix: o.Prefix}}.String()
	case *roleOptions:
		return Describe(blob.ConnectionInfo{Config: &o.Bucket})
	case *blobhttp.Connection:
		return o.String()
	default:
		return i.Type
	}
}

// IsDirectory says whether a storage is a directory of this machine, so that a request costs little.
func IsDirectory(st blob.Reader) bool { return directoryOf(st) != "" }

// directoryOf returns the directory of a storage, or "".
func directoryOf(st blob.Reader) string {
	if o, ok := st.ConnectionInfo().Config.(*filesystem.Options); ok {
		return o.Path
	}
	return ""
}
