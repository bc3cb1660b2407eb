package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/s3"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/encryption"
	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/repo/hashing"
	"github.com/kopia/kopia/repo/splitter"
)

// What Velero sets: pkg/repository/keys and pkg/repository/udmrepo.
const (
	password       = "static-passw0rd" //nolint:gosec // Velero's, of a repository that is thrown away
	user, host     = "default", "default"
	cacheBytes     = int64(5000) << 20
	listCacheSecs  = 30
	dataCacheShare = cacheBytes / 5 * 4
)

func openStorage(ctx context.Context, c *Config) (blob.Storage, error) {
	return s3.New(ctx, &s3.Options{
		BucketName: c.Bucket, Prefix: c.Prefix, Endpoint: c.Endpoint, Region: c.Region, RootCA: c.RootCA, AccessKeyID: c.AccessKey, SecretAccessKey: c.SecretKey,
	}, false)
}

// create makes the repository.
func create(ctx context.Context, c *Config) (err error) {
	st, err := openStorage(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close(ctx)) }()
	return repo.Initialize(ctx, st, &repo.NewRepositoryOptions{
		BlockFormat:  format.ContentFormat{Hash: hashing.DefaultAlgorithm, Encryption: encryption.DefaultAlgorithm},
		ObjectFormat: format.ObjectFormat{Splitter: splitter.DefaultAlgorithm},
	}, password)
}

// open connects to the repository and opens it, as a mover pod of Velero's does. dir is for its configuration and its caches.
func open(ctx context.Context, c *Config, dir string) (repo.Repository, error) {
	st, err := openStorage(ctx, c)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "repository.config")
	err = repo.Connect(ctx, config, st, password, &repo.ConnectOptions{
		CachingOptions: content.CachingOptions{
			CacheDirectory:              filepath.Join(dir, "cache"),
			ContentCacheSizeBytes:       dataCacheShare / 5 * 4,
			ContentCacheSizeLimitBytes:  dataCacheShare,
			MetadataCacheSizeBytes:      cacheBytes / 5 / 5 * 4,
			MetadataCacheSizeLimitBytes: cacheBytes / 5,
			MaxListCacheDuration:        content.DurationSeconds((listCacheSecs * time.Second).Seconds()),
		},
		ClientOptions: repo.ClientOptions{Hostname: host, Username: user},
	})
	if err := errors.Join(err, st.Close(ctx)); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return repo.Open(ctx, config, password, &repo.Options{})
}
