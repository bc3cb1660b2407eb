package repository

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/table"
)

// sleepFor lets this much time pass, in which others maintain and this process does nothing.
func (s *longSite) sleepFor(d time.Duration) {
	const runs = 8
	for range runs {
		s.move(d / runs)
		s.maintain()
	}
}

// once returns a function that calls f the first time, and does nothing after that.
func once(f func()) func() {
	var done atomic.Bool
	return func() {
		if done.CompareAndSwap(false, true) {
			f()
		}
	}
}

// A machine sleeps for longer than a session manifest counts, at a moment when session manifests name everything that the session
// has. A full backup stores again what is gone. An incremental ends, because nobody knows what is left of its parent.
func TestSession_sleepsPastItsManifest(t *testing.T) {
	t.Parallel()
	for _, incremental := range []bool{false, true} {
		for _, at := range []string{"settled", "flushing"} {
			t.Run(fmt.Sprintf("incremental %t, %s", incremental, at), func(t *testing.T) {
				t.Parallel()
				s := newLongSite(t)
				disk := s.disk(2)
				q := Request{ID: engine.NewPointID(), Source: testSource}
				if incremental {
					first, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
					if err != nil {
						t.Fatal(err)
					}
					disk.write(s.random, extent.Extent{Offset: 5 * mib, Length: mib}, false)
					q.Disks = []DiskSource{disk.source(true)}
					defer func() {
						refresh(t, s.others)
						if _, err := s.others.Get(t.Context(), first.ID); !errors.Is(err, errclass.NotFound) {
							t.Errorf("this test does not test anything: %v", err)
						}
					}()
					sleep := s.sleepFor
					q.settled = func() {
						refresh(t, s.others)
						if err := s.others.Delete(t.Context(), first.ID); err != nil {
							t.Error(err)
						}
						if at == "settled" {
							sleep(24 * 24 * time.Hour)
						}
					}
				} else {
					q.Disks = []DiskSource{disk.source(false)}
				}
				switch {
				case at == "flushing":
					q.flushing = once(func() { s.sleepFor(24 * 24 * time.Hour) })
				case !incremental:
					q.settled = once(func() { s.sleepFor(24 * 24 * time.Hour) })
				}
				p, err := s.r.Backup(t.Context(), q)
				if !incremental && at == "settled" {
					if err != nil {
						t.Fatal(err)
					}
					s.settled(p, disk.data)
					return
				}
				if err == nil {
					t.Error("it succeeded")
				}
				refresh(t, s.others)
				if p, err := s.others.Get(t.Context(), q.ID); !errors.Is(err, errclass.NotFound) {
					t.Errorf("it is there: %v, %v", p, err)
				}
			})
		}
	}
}

// A session manifest never names what was lost while the machine slept: every collection succeeds, whenever it runs.
func TestSession_sleepsAndStopsNoCollection(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(2)
	var awake, maintaining atomic.Bool
	s.changed = func(op string, id blob.ID) {
		if op == "put" && strings.HasPrefix(string(id), storage.IndexPrefix) && awake.Load() && maintaining.CompareAndSwap(false, true) {
			s.maintain()
			maintaining.Store(false)
		}
	}
	q := Request{Source: testSource, Disks: []DiskSource{disk.source(false)}}
	q.settled = once(func() {
		s.sleepFor(24 * 24 * time.Hour)
		awake.Store(true)
	})
	p, err := s.r.Backup(t.Context(), q)
	awake.Store(false)
	if err != nil {
		t.Fatal(err)
	}
	s.settled(p, disk.data)
}

// The machine sleeps in the middle of the flush that stores a session manifest. What the manifest names is checked afterwards,
// and stored again.
func TestSession_sleepsWhileItsManifestIsStored(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(2)
	first, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	s.move(48 * time.Hour)
	s.maintain()
	if err := s.others.Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	sleep := once(func() { s.sleepFor(3 * 24 * time.Hour) })
	var armed atomic.Bool
	s.refusesPut = func(id blob.ID) error {
		if armed.Load() && strings.HasPrefix(string(id), storage.IndexPrefix) {
			armed.Store(false)
			sleep()
		}
		return nil
	}
	long := newLongBackup(s.site, 0, packBlocks, 0, nil)
	d := long.source(disk, false)
	d.Reader = &hookedReader{Reader: d.Reader, call: func(offset int64) {
		if offset == int64(len(disk.data))-DefaultBlockBytes {
			armed.Store(true) // The next index is stored when the disk is done.
		}
	}}
	p, err := long.backUp(t.Context(), s.r, Request{Source: testSource, Parent: ParentNone, Disks: []DiskSource{d}})
	if err != nil {
		t.Fatal(err)
	}
	if armed.Load() {
		t.Error("it did not sleep")
	}
	s.settled(p, disk.data)
}

// A backup that fails before it has finished anything leaves findable what an earlier one has uploaded.
func TestSession_failsAtOnceAndKeepsEarlierUploads(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := disk.source(false)
	d.Reader = &gatedReader{Reader: d.Reader, gate: 32 * mib, reached: func(context.Context) error {
		cancel()
		return ctx.Err()
	}}
	backUp := func(ctx context.Context, d DiskSource) error {
		_, err := s.r.Backup(ctx, Request{Source: testSource, Workers: 1, Disks: []DiskSource{d}})
		return err
	}
	if err := backUp(ctx, d); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	d.Reader = unreadable{}
	if err := backUp(t.Context(), d); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	for range 8 {
		s.move(20 * time.Hour)
		s.maintain()
	}
	before := s.stored.Load()
	if err := backUp(t.Context(), disk.source(false)); err != nil {
		t.Fatal(err)
	}
	if uploaded := s.stored.Load() - before; uploaded > 17*mib {
		t.Errorf("%d bytes were uploaded, of which 16 MiB were missing", uploaded)
	}
	if n := leases(t, s.others); n > 0 {
		refresh(t, s.others)
		if n = leases(t, s.others); n > 0 {
			t.Errorf("%d session manifests are left", n)
		}
	}
}

// A region that was finished after another one was lost does not count as named by a session manifest before a manifest names it.
func TestSessionWork_confirmsWhatIsNamed(t *testing.T) {
	t.Parallel()
	g, err := table.NewGeometry(10*64*mib, DefaultBlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	var w sessionWork
	d := w.addDisk(g)
	finish := func(i int) {
		e := g.Region(i)
		w.addRegion(d, object.IndirectObjectEntry{Start: e.Offset, Length: e.Length}, time.Unix(int64(i+1), 0))
	}
	for i := range 4 {
		finish(i)
	}
	f := w.collectFinished()
	w.breakRegion(d, 1)
	finish(4)
	w.confirmNamed(f)
	if n := w.collectFinished().disks[0].confirmed; n != 3 {
		t.Errorf("%d of regions 0, 2, 3, 4 count as named, want 3", n)
	}
}

// Exclusive maintenance ignores a backup whose machine has slept for two hours. The backup then checks what no session manifest
// names.
func TestSession_sleepsPastExclusiveMaintenance(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	disk := s.disk(2)
	first, err := s.r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	refresh(t, s.others)
	if err := s.others.Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	d := disk.source(false)
	var reads atomic.Int64
	d.Reader = &hookedReader{Reader: d.Reader, call: func(int64) {
		switch reads.Add(1) {
		case 1:
			s.move(25 * time.Minute) // The first block is found late.
		case packBlocks:
			s.move(engine.SessionLive - 24*time.Minute)
			if err := s.others.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
				t.Error(err)
			}
		}
	}}
	p, err := s.r.Backup(t.Context(), Request{Source: testSource, Parent: ParentNone, Workers: 1, Disks: []DiskSource{d}})
	if err != nil {
		t.Fatal(err)
	}
	s.settled(p, disk.data)
}

// A backup of other disks of the source leaves findable what a failed one has uploaded.
func TestSession_leavesWhatIsOfOtherDisks(t *testing.T) {
	t.Parallel()
	s := newLongSite(t)
	system, data := s.disk(1), s.disk(3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	backUp := func(ctx context.Context, name string, d DiskSource) error {
		d.Name = name
		_, err := s.r.Backup(ctx, Request{Source: testSource, Workers: 1, Disks: []DiskSource{d}})
		return err
	}
	d := data.source(false)
	d.Reader = &gatedReader{Reader: d.Reader, gate: 32 * mib, reached: func(context.Context) error {
		cancel()
		return ctx.Err()
	}}
	if err := backUp(ctx, "data", d); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := backUp(t.Context(), "system", system.source(false)); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		s.move(20 * time.Hour)
		s.maintain()
	}
	before := s.stored.Load()
	if err := backUp(t.Context(), "data", data.source(false)); err != nil {
		t.Fatal(err)
	}
	if uploaded := s.stored.Load() - before; uploaded > 17*mib {
		t.Errorf("%d bytes were uploaded, of which 16 MiB were missing", uploaded)
	}
	refresh(t, s.others)
	if n := leases(t, s.others); n > 0 {
		t.Errorf("%d session manifests are left", n)
	}
}
