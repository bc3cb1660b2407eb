package repository

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/manifest"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/test/verdict"
)

// openedAt returns a connection of a machine whose clock is this much ahead of the storage's.
func (s *site) openedAt(tb testing.TB, name string, ahead time.Duration) *Repository {
	tb.Helper()
	a, err := engine.LoadAccess(s.connect(tb, name, !cached), testPassword)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := engine.OpenConnection(tb.Context(), a, func() time.Time { return s.now().Add(ahead) })
	if err != nil {
		tb.Fatal(err)
	}
	r := &Repository{c}
	tb.Cleanup(func() {
		if err := r.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	})
	return r
}

// allManifests returns the times of all manifests by ID and type.
func allManifests(tb testing.TB, r *Repository) map[string]time.Time {
	tb.Helper()
	refresh(tb, r)
	found, err := r.conn.Kopia.FindManifests(tb.Context(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	all := map[string]time.Time{}
	for _, m := range found {
		all[m.Labels[manifest.TypeLabelKey]+" "+string(m.ID)] = m.ModTime
	}
	return all
}

// A machine whose clock differs from the storage's by more than a lease lasts takes nobody for dead. Its backups and leases leave
// those of others alone, and its maintenance refuses before it changes anything.
func TestClock_thatDiffersEndsNoLease(t *testing.T) { //nolint:tparallel // the subtests have one site
	t.Parallel()
	s := newSite(t)
	r := s.opened(t, s.connect(t, "right", !cached))
	disk := &memory{data: []byte("varve")}
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: s.now(), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	held, err := r.Lease(t.Context(), p.ID, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	}()
	err = r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		manyManifests(ctx, t, w)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, ahead := range map[string]time.Duration{"ahead": engine.LeaseLife + time.Hour, "behind": -engine.LeaseLife - time.Hour} {
		t.Run(name, func(t *testing.T) {
			wrong := s.openedAt(t, name, ahead)
			disk.write(nil, extent.Extent{Length: 1}, true)
			p, err := wrong.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(true)}})
			if err != nil || p.Disks[0].Parent == "" {
				t.Fatalf("%+v, %v", p, err)
			}
			reads, err := wrong.Lease(t.Context(), p.ID, func(err error) { t.Error(err) })
			if err == nil {
				err = reads.Release()
			}
			if err != nil {
				t.Fatal(err)
			}
			refresh(t, r)
			if n := leases(t, r); n != 1 {
				t.Errorf("%d leases after a backup and a lease, and there was one", n)
			}
			before, contents := allManifests(t, r), manifestContents(t, r)
			s.changed = func(op string, id blob.ID) {
				// Allowed is what it takes to get the lock and to lose it, and the schedule, whose time is the storage's.
				lock := strings.HasPrefix(string(id), "s") || op == "put" && (strings.HasPrefix(string(id), "q") || strings.HasPrefix(string(id), storage.IndexPrefix))
				if !lock && id != "kopia.maintenance" {
					t.Errorf("%s %s", op, id)
				}
			}
			for _, mode := range []MaintenanceMode{QuickMaintenance, FullMaintenance} {
				if err := wrong.Maintain(t.Context(), MaintenanceOptions{Mode: mode}); err == nil || !strings.Contains(err.Error(), "clock skew") {
					t.Errorf("%s maintenance: %v", mode, err)
				}
			}
			s.changed = nil
			if diff := cmp.Diff(before, allManifests(t, r)); diff != "" {
				verdict.Errorf(t, "manifests: %s", diff)
			}
			if n := manifestContents(t, r); n < contents {
				t.Errorf("%d of %d contents with manifests are left", n, contents)
			}
		})
	}
}

// A machine whose clock is ahead does not take the lock from its holder. So no third machine works beside the holder, nor backs
// up beside exclusive maintenance. If a machine died, others know when its lock has ended.
func TestClock_thatIsAheadTakesNoLock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.opened(t, s.connect(t, "right", !cached))
	_, held, err := r.conn.LockAs(t.Context(), engine.MaintenancePurpose, true)
	if err != nil {
		t.Fatal(err)
	}
	s.move(2 * engine.LockContest)
	before := allManifests(t, r)
	ahead, third := s.openedAt(t, "ahead", 2*engine.LockLife), s.opened(t, s.connect(t, "third", !cached))
	maintain := func(r *Repository) error { return r.Maintain(t.Context(), MaintenanceOptions{Mode: QuickMaintenance}) }
	backUp := func(r *Repository) error {
		_, err := r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{(&memory{data: []byte("varve")}).source(false)}})
		return err
	}
	for what, do := range map[string]func(*Repository) error{"maintenance": maintain, "a backup": backUp} {
		if err := do(ahead); err == nil || !strings.Contains(err.Error(), "set the clock") {
			t.Errorf("%s of the machine that is ahead: %v, want an error that says to set the clock", what, err)
		}
		if diff := cmp.Diff(before, allManifests(t, r)); diff != "" {
			verdict.Errorf(t, "manifests after %s: %s", what, diff)
		}
		if err := do(third); !errors.Is(err, errclass.Conflict) {
			t.Errorf("%s of a third machine, while the first one has the lock: %v", what, err)
		}
	}
	// The holder dies: nobody renews its lock.
	s.move(engine.LockLife)
	for _, do := range []func(*Repository) error{backUp, maintain} {
		if err := do(third); err != nil {
			t.Error(err)
		}
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
}
