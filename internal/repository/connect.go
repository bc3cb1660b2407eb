package repository

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/blob/s3"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/format"
)

const (
	// hashAlgorithm and encryptionAlgorithm are the fastest that kopia has on processors of today (docs/format.md).
	hashAlgorithm       = "BLAKE3-256-128"
	encryptionAlgorithm = "AES256-GCM-HMAC-SHA256"
)

// Location is where a repository's blobs are: exactly one of its fields is set.
type Location struct {
	// Directory is an absolute path.
	Directory string
	S3        *S3
}

// S3 is a bucket of anything that speaks S3.
type S3 struct {
	// Endpoint is host or host:port.
	Endpoint string
	Bucket   string
	// Prefix of the blobs' names, for instance "varve/".
	Prefix string
	Region string
	// PlainHTTP turns TLS off. RootCA is PEM, for an authority that the system does not know.
	PlainHTTP bool
	RootCA    []byte
	// AccessKey and SecretKey; SessionToken for temporary ones.
	AccessKey, SecretKey, SessionToken string
}

// CreateOptions are properties that a repository keeps.
type CreateOptions struct {
	// LockMode is GOVERNANCE or COMPLIANCE and LockPeriod how long no blob can be deleted after it was written; empty: no object lock.
	LockMode   string
	LockPeriod time.Duration
}

// ConnectOptions are properties of this machine's connection.
type ConnectOptions struct {
	// CacheDirectory for indexes, metadata and data; "": no cache.
	CacheDirectory string
	// CacheBytes bounds the cached data.
	CacheBytes int64
	ReadOnly   bool
	// Host and User are who this machine is in the repository; "": as the system says.
	Host, User string
}

// Create makes a repository at an empty location. It is always encrypted.
func Create(ctx context.Context, at Location, password string, o CreateOptions) error {
	if password == "" {
		return fmt.Errorf("%w: an empty password", ErrInvalid)
	}
	st, err := at.open(ctx, true)
	if err != nil {
		return err
	}
	options := &repo.NewRepositoryOptions{
		BlockFormat: format.ContentFormat{
			Hash: hashAlgorithm, Encryption: encryptionAlgorithm, EnablePasswordChange: true,
		},
		RetentionMode: blob.RetentionMode(o.LockMode), RetentionPeriod: o.LockPeriod,
	}
	if o.LockMode != "" && !options.RetentionMode.IsValid() {
		return errors.Join(fmt.Errorf("%w: object lock mode %q: GOVERNANCE or COMPLIANCE", ErrInvalid, o.LockMode), st.Close(ctx))
	}
	err = repo.Initialize(ctx, st, options, password)
	if errors.Is(err, repo.ErrAlreadyInitialized) {
		err = fmt.Errorf("%w: there is a repository already: connect to it", ErrConflict)
	}
	if err == nil {
		err = copyFormat(ctx, st, blob.PutOptions{RetentionMode: options.RetentionMode, RetentionPeriod: o.LockPeriod})
	}
	if err = errors.Join(err, st.Close(ctx)); err != nil {
		return fmt.Errorf("create a repository in %s: %w", at, err)
	}
	return nil
}

// Connect checks the password and writes configFile, which Open reads. The file holds the keys of the storage, and not the password.
func Connect(ctx context.Context, configFile string, at Location, password string, o ConnectOptions) error {
	st, err := at.open(ctx, false)
	if err != nil {
		return err
	}
	err = repo.Connect(ctx, configFile, st, password, &repo.ConnectOptions{
		ClientOptions: repo.ClientOptions{Hostname: o.Host, Username: o.User, ReadOnly: o.ReadOnly},
		CachingOptions: content.CachingOptions{
			CacheDirectory: o.CacheDirectory, ContentCacheSizeBytes: o.CacheBytes, MetadataCacheSizeBytes: max(o.CacheBytes, 256*mib),
		},
	})
	switch {
	case errors.Is(err, repo.ErrInvalidPassword):
		err = ErrPassword
	case errors.Is(err, repo.ErrRepositoryNotInitialized):
		err = fmt.Errorf("%w: no repository is there: create one", ErrNotFound)
	}
	if err = errors.Join(err, st.Close(ctx)); err != nil {
		return fmt.Errorf("connect to the repository in %s: %w", at, err)
	}
	return nil
}

// String names the location without its keys.
func (l Location) String() string {
	if l.S3 != nil {
		return "s3://" + l.S3.Endpoint + "/" + l.S3.Bucket + "/" + l.S3.Prefix
	}
	return l.Directory
}

func (l Location) open(ctx context.Context, create bool) (blob.Storage, error) {
	switch {
	case l.S3 != nil && l.Directory == "":
		return l.S3.open(ctx, create)
	case l.S3 == nil && filepath.IsAbs(l.Directory):
		return openDirectory(ctx, l.Directory, create)
	}
	return nil, fmt.Errorf("%w: location %q: an absolute directory or an S3 bucket", ErrInvalid, l)
}

func openDirectory(ctx context.Context, path string, create bool) (blob.Storage, error) {
	if create {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
	}
	st, err := filesystem.New(ctx, &filesystem.Options{Path: path}, create)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", path, err)
	}
	return st, nil
}

func (s *S3) open(ctx context.Context, create bool) (blob.Storage, error) {
	st, err := s3.New(ctx, &s3.Options{
		BucketName: s.Bucket, Prefix: s.Prefix, Endpoint: s.Endpoint, Region: s.Region, DoNotUseTLS: s.PlainHTTP, RootCA: s.RootCA,
		AccessKeyID: s.AccessKey, SecretAccessKey: s.SecretKey, SessionToken: s.SessionToken,
	}, create)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s at %s: %w", s.Bucket, s.Endpoint, err)
	}
	return st, nil
}
