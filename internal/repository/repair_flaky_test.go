package repository

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/verify"
)

// flakyStorage fails the first reads of indexes.
type flakyStorage struct {
	blob.Storage
	failures atomic.Int64
}

var errFlaky = errors.New("the storage has a bad moment")

func (f *flakyStorage) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	if strings.HasPrefix(string(id), storage.IndexPrefix) && f.failures.Add(-1) >= 0 {
		return errFlaky
	}
	return f.Storage.GetBlob(ctx, id, offset, length, out)
}

// Close leaves the storage open for the next inspection.
func (f *flakyStorage) Close(context.Context) error { return nil }

// Reads of an index fail up to some moment, and right afterwards it can be read: it is intact.
func TestRepair_takesNoFailedReadForDamage(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	twoRegions(t, r)
	access, err := engine.LoadAccess(config, testPassword)
	if err != nil {
		t.Fatal(err)
	}
	st, err := access.OpenStorage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for failures := range int64(60) {
		flaky := &flakyStorage{Storage: st}
		flaky.failures.Store(failures)
		i, err := verify.InspectStorage(t.Context(), flaky, access)
		if err != nil {
			failed++
			continue
		}
		if len(i.DamagedIndexes) > 0 {
			t.Errorf("after %d failed reads %v are taken for damaged", failures, i.DamagedIndexes)
		}
		if err := i.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if failed == 0 {
		t.Error("no read has failed: this test does not test anything")
	}
	if err := st.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
