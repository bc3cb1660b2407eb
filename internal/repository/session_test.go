package repository

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Exclusive maintenance refuses while a backup runs, and says whose. It no longer refuses once that backup has been silent for
// hours.
func TestSession_keepsExclusiveMaintenanceOut(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(1)
	exclusive := func() error {
		return s.others.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true})
	}
	d := disk.source(false)
	d.Reader = &hooked{memory: disk, call: func() {
		err := exclusive()
		if !errors.Is(err, errclass.Conflict) || !strings.Contains(err.Error(), "varve@mover") || !strings.Contains(err.Error(), testSource.String()) {
			t.Errorf("%v", err)
		}
	}}
	p, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{d}})
	if err != nil {
		t.Fatal(err)
	}
	if err := exclusive(); err != nil {
		t.Error(err)
	}
	same(t, s.r, p, disk.data)
}

// No backup begins while exclusive maintenance runs.
func TestSession_refusedByExclusiveMaintenance(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(1)
	backUp := func() error {
		_, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
		return err
	}
	var refused atomic.Bool
	err := s.others.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true, Step: func(MaintenanceStep) {
		if err := backUp(); errors.Is(err, errclass.Conflict) && strings.Contains(err.Error(), "varve@maintainer") {
			refused.Store(true)
		}
	}})
	if err != nil || !refused.Load() {
		t.Errorf("maintenance: %v; the backup was refused: %t", err, refused.Load())
	}
	if err := backUp(); err != nil {
		t.Error(err)
	}
	if n := leases(t, s.others); n > 0 {
		t.Errorf("%d session manifests are left", n)
	}
}

// A backup that is cancelled right after its restore point was stored has succeeded.
func TestPublish_successIsFinal(t *testing.T) {
	t.Parallel()
	for _, incremental := range []bool{false, true} {
		s := newLongSite(t)
		disk := s.disk(1)
		if incremental {
			if _, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}}); err != nil {
				t.Fatal(err)
			}
			disk.write(s.random, extent.Extent{Length: 100}, false)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		q := Request{Source: testSource, Disks: []DiskSource{disk.source(incremental)}}
		q.flushing = cancel
		p, err := s.r.Backup(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		refresh(t, s.others)
		if _, err := s.others.Get(t.Context(), p.ID); err != nil {
			t.Error(err)
		}
		if _, err := engine.ReadRecord(t.Context(), s.others.conn.Kopia, p.ID); err != nil {
			t.Error(err)
		}
	}
}

// When all that is left is to make the restore point visible, a storage does not end the backup by stalling as often as a request
// is repeated.
func TestPublish_outlastsAStorageThatStalls(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		s := newLongSite(t)
		q := Request{Source: testSource, Disks: []DiskSource{(&memory{data: []byte("varve")}).source(false)}}
		q.flushing = func() { time.Sleep(storage.StallAttempts * storage.StallLimit) }
		if _, err := s.r.Backup(t.Context(), q); err != nil {
			t.Error(err)
		}
	})
}

// The answer to the last request of a backup is lost. If the restore point can be seen, the backup has succeeded. If the storage
// is gone, the outcome is unknown, and repeating the backup with its ID finds out.
func TestPublish_whenTheAnswerIsLost(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"and the storage can be listed": false, "and the storage is gone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// kopia asks three times, for eleven seconds each.
			inBubble(t, func(t *testing.T) { answerIsLost(t, gone) })
		})
	}
}

func answerIsLost(t *testing.T, gone bool) {
	t.Helper()
	s := newLongSite(t)
	disk := s.disk(1)
	q := Request{ID: engine.NewPointID(), Source: testSource, Disks: []DiskSource{disk.source(false)}}
	var failing atomic.Bool
	q.flushing = func() { failing.Store(true) }
	s.answers = func(id blob.ID) error {
		if failing.Load() && strings.HasPrefix(string(id), storage.IndexPrefix) {
			return errBroken
		}
		return nil
	}
	s.lists = func() error {
		if gone && failing.Load() {
			return errBroken
		}
		return nil
	}
	p, err := s.r.Backup(t.Context(), q)
	failing.Store(false)
	if !gone && (err != nil || p.ID != q.ID) {
		t.Errorf("%+v, %v", p, err)
	}
	if gone && (!errors.Is(err, errclass.Unknown) || !strings.Contains(err.Error(), q.ID)) {
		t.Errorf("%+v, %v", p, err)
	}
	q.Disks[0].Reader = unreadable{}
	if p, err := s.others.Backup(t.Context(), q); err != nil || p.ID != q.ID {
		t.Errorf("again: %+v, %v", p, err)
	}
	if n := leases(t, s.others); n > 0 {
		t.Errorf("%d session manifests are left", n)
	}
}

// unreadable is a disk that must not be read.
type unreadable struct{}

func (unreadable) ReadAt(context.Context, []byte, int64) error { return errBroken }

// A backup that is repeated with its ID returns the existing restore point.
func TestRequest_repeatedWithItsID(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(1)
	q := Request{ID: strings.Repeat("0a", 16), Source: testSource, Disks: []DiskSource{disk.source(false)}}
	first, err := s.r.Backup(t.Context(), q)
	if err != nil || first.ID != q.ID {
		t.Fatalf("%+v, %v", first, err)
	}
	q.Disks[0].Reader = unreadable{}
	again, err := s.others.Backup(t.Context(), q)
	if err != nil || again.ID != first.ID || again.Snapshot != first.Snapshot {
		t.Errorf("%+v, %v", again, err)
	}
	if points, err := s.others.List(t.Context(), nil); err != nil || len(points) != 1 {
		t.Errorf("%v, %v", points, err)
	}
	other := q
	other.Source.Path = "/other"
	if _, err := s.r.Backup(t.Context(), other); !errors.Is(err, errclass.Conflict) {
		t.Errorf("another source: %v", err)
	}
	q.ID = "short"
	if _, err := s.r.Backup(t.Context(), q); !errors.Is(err, errclass.Invalid) {
		t.Errorf("a bad ID: %v", err)
	}
}

// A flush that has failed is tried again, and the backup succeeds.
func TestFlush_isTriedAgain(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(2)
	var failed atomic.Int64
	long := newLongBackup(s.site, 5*time.Minute, packBlocks, 0, nil)
	s.refusesPut = func(id blob.ID) error {
		if strings.HasPrefix(string(id), storage.IndexPrefix) && s.refusing.CompareAndSwap(true, false) {
			failed.Add(1)
			return errBroken
		}
		return nil
	}
	d := long.source(disk, false)
	d.Reader = &hookedReader{Reader: d.Reader, call: func(offset int64) { s.refusing.CompareAndSwap(false, offset == 8*mib) }}
	p, err := long.backUp(t.Context(), s.r, Request{Source: testSource, Disks: []DiskSource{d}})
	if err != nil || failed.Load() == 0 {
		t.Fatalf("%d failures: %v", failed.Load(), err)
	}
	same(t, s.r, p, disk.data)
}

// A flush that can no longer succeed ends the backup at once.
func TestFlush_endsWhatCannotSucceed(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(2)
	if _, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}}); err != nil {
		t.Fatal(err)
	}
	disk.write(s.random, extent.Extent{Length: int64(len(disk.data))}, false)
	long := newLongBackup(s.site, 40*time.Minute, packBlocks/2, 0, nil)
	d := long.source(disk, true)
	var last int64
	d.Reader = &hookedReader{Reader: d.Reader, call: func(offset int64) {
		if last = max(last, offset); offset != mib {
			return
		}
		refresh(t, s.others)
		ids, err := snapshot.ListSnapshotManifests(t.Context(), s.others.conn.Kopia, nil, nil)
		if err == nil {
			err = s.others.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
				for _, id := range ids {
					if m, err := snapshot.LoadSnapshot(ctx, w, id); err != nil || m.Tags[engine.TagSession] == "" {
						continue
					}
					if err := w.DeleteManifest(ctx, id); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err != nil {
			t.Error(err)
		}
	}}
	if _, err := long.backUp(t.Context(), s.r, Request{Source: testSource, Disks: []DiskSource{d}}); !errors.Is(err, errclass.NotFound) {
		t.Errorf("%v", err)
	}
	if last > 16*mib {
		t.Errorf("it read up to %d before it ended", last)
	}
}

// hookedReader calls a function before each read.
type hookedReader struct {
	Reader
	call func(offset int64)
}

func (r *hookedReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	r.call(offset)
	return r.Reader.ReadAt(ctx, p, offset)
}

// A machine sleeps for days while a backup runs and others maintain. What no session manifest names is gone, and the backup
// stores it again.
func TestSession_storesAgainWhatHasGone(t *testing.T) {
	t.Parallel()
	for _, slept := range []time.Duration{3 * 24 * time.Hour, 24 * 24 * time.Hour} {
		s := newLongSite(t)
		disk := s.disk(3)
		first, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
		if err != nil {
			t.Fatal(err)
		}
		s.move(48 * time.Hour)
		refresh(t, s.others)
		if err := s.others.Delete(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
		// The process is asleep between two reads, so nothing looks at ticks.
		sleep := once(func() { s.sleepFor(slept) })
		long := newLongBackup(s.site, 40*time.Minute, packBlocks, 0, nil)
		d := long.source(disk, false)
		d.Reader = &hookedReader{Reader: d.Reader, call: func(offset int64) {
			if offset == 24*mib {
				sleep()
			}
		}}
		p, err := long.backUp(t.Context(), s.r, Request{Source: testSource, Parent: ParentNone, Disks: []DiskSource{d}})
		if err != nil {
			t.Fatal(err)
		}
		s.settled(p, disk.data)
	}
}
