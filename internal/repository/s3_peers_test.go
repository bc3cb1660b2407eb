//go:build peers

package repository

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/test/s3"
)

// Whatever is wrong with a bucket is reported with its class, before anything is created.
func TestS3_saysWhatABucketLacks(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{})
	at := func(edit func(*S3)) Location {
		e := server.Endpoint
		s := &S3{Endpoint: e.Address, Bucket: e.Bucket, Region: e.Region, Prefix: "p/", PlainHTTP: true, AccessKey: e.AccessKey, SecretKey: e.SecretKey}
		edit(s)
		return Location{S3: s}
	}
	connect := func(ctx context.Context, l Location) error {
		return Connect(ctx, filepath.Join(t.TempDir(), "config"), l, testPassword, ConnectOptions{})
	}
	create := func(ctx context.Context, l Location) error {
		return Create(ctx, l, testPassword, CreateOptions{})
	}
	locked := func(ctx context.Context, l Location) error {
		return Create(ctx, l, testPassword, CreateOptions{LockMode: "GOVERNANCE", LockPeriod: 24 * time.Hour})
	}
	for name, c := range map[string]struct {
		do    func(context.Context, Location) error
		edit  func(*S3)
		class error
		text  string
	}{
		"connect without a bucket":     {connect, func(s *S3) { s.Bucket = "another" }, ErrNoBucket, "another at " + server.Address},
		"create without a bucket":      {create, func(s *S3) { s.Bucket = "another" }, ErrNoBucket, "another at " + server.Address},
		"connect to an empty bucket":   {connect, func(*S3) {}, errclass.NotFound, "create one"},
		"connect with a wrong secret":  {connect, func(s *S3) { s.SecretKey = "x" }, errclass.Denied, ""},
		"create with an unknown key":   {create, func(s *S3) { s.AccessKey = "x" }, errclass.Denied, ""},
		"lock in a bucket without it":  {locked, func(*S3) {}, errclass.Invalid, "made with object lock"},
		"connect to another's address": {connect, func(s *S3) { s.Endpoint, s.AnswerTimeout = silent(t), time.Second }, ErrUnreachable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.do(t.Context(), at(c.edit))
			if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want class %v and %q", err, c.class, c.text)
			}
			if errors.Is(err, ErrNoBucket) != errors.Is(c.class, ErrNoBucket) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A prefix with other objects is a mistake. One with a console's folder, or with settings for kopia, counts as empty.
func TestCreate_refusesAPrefixThatIsNotEmpty(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{})
	client := server.Client(t)
	put := func(name string) {
		t.Helper()
		if _, err := client.PutObject(t.Context(), server.Bucket, name, strings.NewReader("{}"), 2, minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(prefix string) error {
		e := server.Endpoint
		at := Location{S3: &S3{Endpoint: e.Address, Bucket: e.Bucket, Region: e.Region, Prefix: prefix, PlainHTTP: true, AccessKey: e.AccessKey, SecretKey: e.SecretKey}}
		return Create(t.Context(), at, testPassword, CreateOptions{})
	}
	put("photos/2024/beach.jpg")
	for prefix, found := range map[string]string{"": "(photos/)", "photos/": "(2024/)", "photos/2024/": "(beach.jpg)"} {
		if err := create(prefix); !errors.Is(err, errclass.Conflict) || !strings.Contains(err.Error(), found) {
			t.Errorf("prefix %q with a photo: %v", prefix, err)
		}
	}
	put("varve/.storageconfig")
	if err := create("varve/"); err != nil {
		t.Errorf("an empty prefix: %v", err)
	}
	if err := create("varve/"); !errors.Is(err, errclass.Conflict) || !strings.Contains(err.Error(), "there is a repository already") {
		t.Errorf("a repository: %v", err)
	}
}

// The keys of a bucket are in no file, not even in the cache.
func TestOpenLocation_keepsKeysInMemory(t *testing.T) {
	server := s3.Start(t, s3.Options{})
	e, cache := server.Endpoint, filepath.Join(t.TempDir(), "cache")
	at := Location{S3: &S3{Endpoint: e.Address, Bucket: e.Bucket, Region: e.Region, Prefix: "pod/", PlainHTTP: true, AccessKey: e.AccessKey, SecretKey: e.SecretKey}}
	check := forbidFiles(t)
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := OpenLocation(t.Context(), at, testPassword, ConnectOptions{Host: "pod", User: "mover", CacheDirectory: cache, CacheBytes: mib})
	if err != nil {
		t.Fatal(err)
	}
	useEverything(t, r, "web")
	check()
	lacksSecrets(t, cache, testPassword, e.SecretKey)
	at.S3.Bucket = "another"
	if _, err := OpenLocation(t.Context(), at, testPassword, ConnectOptions{}); !errors.Is(err, ErrNoBucket) {
		t.Error(err)
	}
}
