//go:build peers

package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/test/verdict"
)

var everyKind = map[string]Options{
	"plain":       {},
	"TLS":         {TLS: true},
	"versioned":   {Versioning: true, Bucket: "another-bucket"},
	"object lock": {ObjectLock: true, TLS: true},
}

// once makes a client fail at the first error.
func once(o *minio.Options) { o.MaxRetries = 1 }

func content(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func put(tb testing.TB, c *minio.Client, bucket, key string, data []byte, o minio.PutObjectOptions) minio.UploadInfo {
	tb.Helper()
	info, err := c.PutObject(tb.Context(), bucket, key, bytes.NewReader(data), int64(len(data)), o)
	if err != nil {
		tb.Fatalf("put %s: %v", key, err)
	}
	return info
}

// read returns the content of a version of an object ("" is the newest), or the error. It does not retry.
func read(ctx context.Context, c *minio.Client, bucket, key, version string) ([]byte, error) {
	body, _, _, err := minio.Core{Client: c}.GetObject(ctx, bucket, key, minio.GetObjectOptions{VersionID: version})
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(body)
	return data, errors.Join(err, body.Close())
}

func wantContent(tb testing.TB, c *minio.Client, bucket, key string, want []byte) {
	tb.Helper()
	if got, err := read(tb.Context(), c, bucket, key, ""); err != nil || !bytes.Equal(got, want) {
		verdict.JudgeErrorf(tb, err == nil, "%s has %d bytes that are not the %d that were put, %v", key, len(got), len(want), err)
	}
}

func wantAbsent(tb testing.TB, c *minio.Client, bucket, key string) {
	tb.Helper()
	if _, err := c.StatObject(tb.Context(), bucket, key, minio.StatObjectOptions{}); code(err) != "NoSuchKey" {
		tb.Errorf("%s is there: %v", key, err)
	}
}

// wantNoReply checks that the connection ended without a reply. (minio-go replaces io.EOF by its own error.)
func wantNoReply(tb testing.TB, err error) {
	tb.Helper()
	var broken *url.Error
	if !errors.As(err, &broken) || broken.Timeout() || errors.Is(err, syscall.ECONNREFUSED) {
		tb.Errorf("%#v", err)
	}
}

func code(err error) string { return minio.ToErrorResponse(err).Code }

func keys(tb testing.TB, c *minio.Client, bucket, prefix string) []string {
	tb.Helper()
	var all []string
	for o := range c.ListObjects(tb.Context(), bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			tb.Fatal(o.Err)
		}
		all = append(all, o.Key)
	}
	return all
}

func TestObjects(t *testing.T) {
	t.Parallel()
	for name, options := range everyKind {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := Start(t, options)
			bucket := server.Bucket
			// Through a proxy without faults as well.
			for _, c := range []*minio.Client{server.Client(t), StartFaults(t, server, 0).Client(t)} {
				small, large := content(1, 1000), content(2, 6<<20)
				put(t, c, bucket, "a/small", small, minio.PutObjectOptions{})
				put(t, c, bucket, "a/in parts+%/ä", large, minio.PutObjectOptions{PartSize: 5 << 20})
				put(t, c, bucket, "b/empty", nil, minio.PutObjectOptions{})
				wantContent(t, c, bucket, "a/small", small)
				wantContent(t, c, bucket, "a/in parts+%/ä", large)
				wantContent(t, c, bucket, "b/empty", []byte{})
				if diff := cmp.Diff([]string{"a/in parts+%/ä", "a/small"}, keys(t, c, bucket, "a/")); diff != "" {
					t.Error(diff)
				}
				for _, key := range keys(t, c, bucket, "") {
					if err := c.RemoveObject(t.Context(), bucket, key, minio.RemoveObjectOptions{}); err != nil {
						t.Error(err)
					}
					wantAbsent(t, c, bucket, key)
				}
				if left := keys(t, c, bucket, ""); len(left) != 0 {
					t.Errorf("left: %q", left)
				}
			}
		})
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	server := Start(t, Options{Versioning: true})
	c := server.Client(t)
	first := put(t, c, server.Bucket, "key", []byte("first"), minio.PutObjectOptions{})
	put(t, c, server.Bucket, "key", []byte("second"), minio.PutObjectOptions{})
	if err := c.RemoveObject(t.Context(), server.Bucket, "key", minio.RemoveObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	wantAbsent(t, c, server.Bucket, "key")
	if got, err := read(t.Context(), c, server.Bucket, "key", first.VersionID); string(got) != "first" || err != nil {
		verdict.JudgeErrorf(t, err == nil, "%q, %v", got, err)
	}
}

func TestLockedObjectsCannotBeDeleted(t *testing.T) {
	t.Parallel()
	server := Start(t, Options{ObjectLock: true})
	c := server.Client(t)
	for _, mode := range []minio.RetentionMode{minio.Compliance, minio.Governance} {
		locked := put(t, c, server.Bucket, "locked", []byte("locked"), minio.PutObjectOptions{
			Mode: mode, RetainUntilDate: time.Now().Add(time.Hour), SendContentMd5: true,
		})
		err := c.RemoveObject(t.Context(), server.Bucket, "locked", minio.RemoveObjectOptions{VersionID: locked.VersionID})
		if code(err) != "AccessDenied" {
			t.Errorf("%s: %v", mode, err)
		}
		// Without a version the removal hides it, but it still exists.
		if err := c.RemoveObject(t.Context(), server.Bucket, "locked", minio.RemoveObjectOptions{}); err != nil {
			t.Error(err)
		}
		wantAbsent(t, c, server.Bucket, "locked")
		if got, err := read(t.Context(), c, server.Bucket, "locked", locked.VersionID); string(got) != "locked" || err != nil {
			verdict.JudgeErrorf(t, err == nil, "%s: %q, %v", mode, got, err)
		}
		bypass := minio.RemoveObjectOptions{VersionID: locked.VersionID, GovernanceBypass: true}
		err = c.RemoveObject(t.Context(), server.Bucket, "locked", bypass)
		if (err == nil) != (mode == minio.Governance) {
			t.Errorf("%s, bypassed: %v", mode, err)
		}
	}
	// An object that is not locked can be removed.
	free := put(t, c, server.Bucket, "free", nil, minio.PutObjectOptions{})
	if err := c.RemoveObject(t.Context(), server.Bucket, "free", minio.RemoveObjectOptions{VersionID: free.VersionID}); err != nil {
		t.Error(err)
	}
}

func TestDataOutlivesTheServer(t *testing.T) {
	t.Parallel()
	for name, options := range everyKind {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := Start(t, options)
			faults := StartFaults(t, server, 0)
			c, through := server.Client(t, once), faults.Client(t, once)
			data := content(3, 1<<20)
			put(t, c, server.Bucket, "before", data, minio.PutObjectOptions{})
			server.Kill(t)
			if _, err := read(t.Context(), c, server.Bucket, "before", ""); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a dead server: %v", err)
			}
			_, err := read(t.Context(), through, server.Bucket, "before", "")
			wantNoReply(t, err)
			server.Restart(t)
			for _, c := range []*minio.Client{c, through} {
				wantContent(t, c, server.Bucket, "before", data)
				put(t, c, server.Bucket, "after", data, minio.PutObjectOptions{})
				wantContent(t, c, server.Bucket, "after", data)
			}
			server.Restart(t) // restarts a running server
			wantContent(t, server.Client(t), server.Bucket, "after", data)
		})
	}
}

func TestServersAreStrangers(t *testing.T) {
	t.Parallel()
	a, b := Start(t, Options{TLS: true}), Start(t, Options{TLS: true})
	mixed := a.Endpoint
	mixed.Address = b.Address
	if _, err := mixed.Client(t, once).BucketExists(t.Context(), b.Bucket); err == nil {
		t.Error("the authority of another server is believed")
	}
	mixed.Authority = b.Authority
	if _, err := read(t.Context(), mixed.Client(t, once), b.Bucket, "key", ""); code(err) != "InvalidAccessKeyId" {
		t.Errorf("the access key of another server: %v", err)
	}
	mixed.AccessKey = b.AccessKey
	if _, err := read(t.Context(), mixed.Client(t, once), b.Bucket, "key", ""); code(err) != "SignatureDoesNotMatch" {
		t.Errorf("the secret key of another server: %v", err)
	}
}
