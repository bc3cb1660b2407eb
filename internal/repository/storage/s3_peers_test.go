//go:build peers

package storage_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/storagetest"
	"github.com/varvebackup/varve/test/s3"
)

// A bucket keeps the same contract as a directory.
func TestS3_keepsTheContract(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{})
	var opened atomic.Int64
	storagetest.Run(t, func(t *testing.T) blob.Storage {
		t.Helper()
		at := storage.Location{S3: &storage.S3{
			Endpoint: server.Address, Bucket: server.Bucket, Region: server.Region, Prefix: fmt.Sprintf("p%d/", opened.Add(1)),
			PlainHTTP: true, AccessKey: server.AccessKey, SecretKey: server.SecretKey,
		}}
		st, err := at.Open(t.Context(), false)
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
