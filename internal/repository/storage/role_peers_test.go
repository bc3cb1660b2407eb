//go:build peers

package storage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/storagetest"
	"github.com/varvebackup/varve/test/s3"
)

// roleBucket returns a bucket that a role opens.
func roleBucket(t *testing.T, server *s3.Server, sts *s3.FakeSTS, prefix string) storage.Location {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(sts.Token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return storage.Location{S3: &storage.S3{
		Endpoint: server.Address, Bucket: server.Bucket, Region: server.Region, Prefix: prefix, RootCA: append(server.Authority, sts.Authority...),
		PlainHTTP: server.Authority == nil, Role: &storage.Role{ARN: sts.Role, STS: sts.URL, TokenFile: token},
	}}
}

// A bucket by a role keeps the contract, over several sets of keys.
func TestRole_keepsTheContract(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{TLS: true})
	sts := s3.StartFakeSTS(t, server, 20*time.Second)
	var opened atomic.Int64
	storagetest.Run(t, func(t *testing.T) blob.Storage {
		t.Helper()
		st, err := roleBucket(t, server, sts, fmt.Sprintf("p%d/", opened.Add(1))).Open(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := st.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
		return st
	})
}

// Keys are renewed before they expire, and again when the server refuses them early; a renewal that fails leaves the old ones in use.
func TestRole_renewsKeys(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{TLS: true})
	sts := s3.StartFakeSTS(t, server, 5*time.Second)
	st, err := roleBucket(t, server, sts, "p/").Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	put := func() error { return st.PutBlob(t.Context(), "p1", storage.Bytes("x"), blob.PutOptions{}) }
	for sts.Count() < 4 {
		if err := put(); err != nil {
			t.Fatal(err)
		}
	}
	sts.Refuse("ServiceUnavailable")
	if err := put(); err != nil {
		t.Errorf("the keys are good, and the STS is not there: %v", err)
	}
	sts.Refuse("AccessDenied")
	var refused *storage.RoleError
	for err = put(); err == nil; err = put() { // until the keys expire
	}
	if !errors.As(err, &refused) || !errors.Is(err, errclass.Denied) {
		t.Errorf("%v", err)
	}
	for _, want := range []string{sts.Role, sts.URL, "AccessDenied"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
	sts.Refuse("")
	if err := put(); err != nil {
		t.Errorf("it does not come back: %v", err)
	}
}
