package mover

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestRateLimit_sharesItsBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := NewRateLimit(1 << 20)
		began := time.Now()
		var jobs sync.WaitGroup
		for range 4 {
			jobs.Go(func() {
				for range 10 {
					if err := limit.waitForBytes(t.Context(), 256<<10); err != nil {
						t.Error(err)
					}
				}
			})
		}
		jobs.Wait()
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("10 MiB at 1 MiB/s took %s", took)
		}
	})
}

func TestRateLimit_endsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := NewRateLimit(1 << 10)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		if err := limit.waitForBytes(ctx, 1<<30); !errors.Is(err, context.Canceled) || time.Since(began) > 2*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := limit.waitForBytes(ctx, 1<<30); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestRateLimit_isNoneForNothing(t *testing.T) {
	t.Parallel()
	if limit := NewRateLimit(0); limit != nil || limit.waitForBytes(t.Context(), 1<<40) != nil {
		t.Error("it waits")
	}
}

// A backup and a restore keep to their limits: they take as long as their bytes need.
func TestRateLimit_slowsBackupAndRestore(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	d := &memoryDisk{content: noise(1, 2<<20)}
	began := time.Now()
	p, err := Backup(t.Context(), r, BackupRequest{
		History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Open: d.open}}, ReadLimit: NewRateLimit(4 << 20),
	})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 350*time.Millisecond {
		t.Errorf("the backup took %s", took)
	}
	began = time.Now()
	path := writeFile(t, nil)
	if _, err := Restore(t.Context(), r, RestoreRequest{Disk: p.Disks[0], Destination: Destination{Location: path}, WriteLimit: NewRateLimit(4 << 20)}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 350*time.Millisecond {
		t.Errorf("the restore took %s", took)
	}
	sameFiles(t, path, writeFile(t, d.content))
}
