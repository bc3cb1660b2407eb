package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/format"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

const (
	// HashAlgorithm and EncryptionAlgorithm are the fastest that kopia offers on today's processors (docs/format.md).
	HashAlgorithm       = "BLAKE3-256-128"
	EncryptionAlgorithm = "AES256-GCM-HMAC-SHA256"
)

// CreateOptions are permanent properties of a repository.
type CreateOptions struct {
	// LockMode is GOVERNANCE or COMPLIANCE. LockPeriod is how long after it was written no blob can be deleted. Empty: no object
	// lock.
	LockMode   string
	LockPeriod time.Duration
}

// ConnectOptions are properties of this machine's connection.
type ConnectOptions struct {
	// CacheDirectory is for a cache of indexes, metadata and CacheBytes of data. One without the other is errclass.Invalid; "" and
	// 0: no cache.
	CacheDirectory string
	CacheBytes     int64
	// CacheLimitBytes is how much of data and of metadata, half of it each, the cache may hold while it is in use; 0:
	// as much as was read within a day. Indexes come on top.
	CacheLimitBytes int64
	ReadOnly        bool
	// Host and User identify this machine in the repository; "": as the system says.
	Host, User string
	// Patience waits for a storage that does not answer, once the connection has opened it; nil: its requests fail.
	// It is not for a connection that is kept in a file.
	Patience *storage.Patience
}

// Create makes a repository at an empty location. It is always encrypted.
func Create(ctx context.Context, at storage.Location, password string, o CreateOptions) error {
	if err := createRepository(ctx, at, password, o); err != nil {
		return fmt.Errorf("create a repository in %s: %w", at, err)
	}
	return nil
}

func createRepository(ctx context.Context, at storage.Location, password string, o CreateOptions) error {
	options := &repo.NewRepositoryOptions{
		BlockFormat: format.ContentFormat{
			Hash: HashAlgorithm, Encryption: EncryptionAlgorithm, EnablePasswordChange: true,
		},
		RetentionMode: blob.RetentionMode(o.LockMode), RetentionPeriod: o.LockPeriod,
	}
	switch {
	case password == "":
		return fmt.Errorf("%w: an empty password", errclass.Invalid)
	case o.LockMode != "" && !options.RetentionMode.IsValid():
		return fmt.Errorf("%w: object lock mode %q: GOVERNANCE or COMPLIANCE", errclass.Invalid, o.LockMode)
	}
	st, err := at.Open(ctx, true)
	if err != nil {
		return err
	}
	err = storage.PrepareForCreation(ctx, st)
	if err == nil {
		err = at.CheckUnused(ctx, st)
	}
	if err == nil {
		err = repo.Initialize(ctx, st, options, password)
	}
	var answer minio.ErrorResponse
	switch {
	case errors.Is(err, repo.ErrAlreadyInitialized):
		err = fmt.Errorf("%w: there is a repository already: connect to it", errclass.Conflict)
	case o.LockMode != "" && errors.As(err, &answer) && answer.StatusCode == http.StatusBadRequest:
		err = fmt.Errorf("%w: the bucket must have been made with object lock: %w", errclass.Invalid, answer)
	}
	var stored map[blob.ID][]byte
	if err == nil {
		stored, err = storage.ReadFormat(ctx, st)
	}
	if err == nil {
		err = StoreFormatCopy(ctx, st, stored, blob.PutOptions{
			RetentionMode:   options.RetentionMode,
			RetentionPeriod: o.LockPeriod,
		})
	}
	return errors.Join(err, st.Close(ctx))
}

// Connect writes configFile, which Open reads. It replaces an existing file once the password has opened the repository; until
// then the old connection stays. The file holds the keys of the storage, but not the password.
func Connect(ctx context.Context, configFile string, at storage.Location, password string, o ConnectOptions) error {
	if err := writeConnection(ctx, configFile, at, password, o); err != nil {
		return fmt.Errorf("connect to the repository in %s: %w", at, err)
	}
	return nil
}

func writeConnection(ctx context.Context, configFile string, at storage.Location, password string, o ConnectOptions) error {
	st, caching, err := openForConnection(ctx, at, password, &o)
	if err != nil {
		return err
	}
	candidate, err := createBesideConfig(configFile)
	if err != nil {
		return errors.Join(err, st.Close(ctx))
	}
	// What is in the cache is not looked at here: it may be damaged, or another process's.
	err = repo.Connect(ctx, candidate, st, password, &repo.ConnectOptions{
		ClientOptions: repo.ClientOptions{Hostname: o.Host, Username: o.User, ReadOnly: o.ReadOnly},
	})
	if err == nil && caching.CacheDirectory != "" {
		err = repo.SetCachingOptions(ctx, candidate, caching)
	}
	switch {
	case errors.Is(err, repo.ErrInvalidPassword):
		err = ErrPassword
	case errors.Is(err, repo.ErrRepositoryNotInitialized):
		err = fmt.Errorf("%w: no repository is there: create one", errclass.NotFound)
	}
	if err = errors.Join(err, st.Close(ctx)); err == nil {
		err = os.Rename(candidate, configFile)
	}
	if err != nil {
		_ = os.Remove(candidate) // kopia may have removed it
	}
	return err
}

// openForConnection opens a storage that a connection is about to be made to, and returns how the connection caches what it reads.
func openForConnection(ctx context.Context, at storage.Location, password string, o *ConnectOptions) (blob.Storage, *content.CachingOptions, error) {
	if (o.CacheDirectory == "") != (o.CacheBytes == 0) || o.CacheBytes < 0 || o.CacheLimitBytes < 0 {
		return nil, nil, fmt.Errorf("%w: a cache of %d bytes, at most %d, in directory %q",
			errclass.Invalid, o.CacheBytes, o.CacheLimitBytes, o.CacheDirectory)
	}
	if err := storage.CheckRegistered(); err != nil {
		return nil, nil, err
	}
	st, err := at.Open(ctx, false)
	if err != nil {
		return nil, nil, err
	}
	caching := &content.CachingOptions{
		CacheDirectory: o.CacheDirectory, ContentCacheSizeBytes: o.CacheBytes, MetadataCacheSizeBytes: max(o.CacheBytes, 256<<20),
		ContentCacheSizeLimitBytes: o.CacheLimitBytes / 2, MetadataCacheSizeLimitBytes: o.CacheLimitBytes / 2,
	}
	err = storage.ExpireCachedFormat(caching)
	if err == nil && !o.ReadOnly {
		err = restoreFormatFromCopy(ctx, st, password)
	}
	if err != nil {
		return nil, nil, errors.Join(err, st.Close(ctx))
	}
	return st, caching, nil
}

// ErrPassword is of class Denied: the password does not open the repository.
var ErrPassword = errclass.New(errclass.Denied, "wrong password")
