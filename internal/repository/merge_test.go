package repository

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/content/index"
	"github.com/kopia/kopia/repo/manifest"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/maintain"
	"github.com/varvebackup/varve/test/verdict"
)

// manifestContents counts the contents with manifests that a connection sees.
func manifestContents(tb testing.TB, r *Repository) (n int) {
	tb.Helper()
	options := content.IterateOptions{Range: index.PrefixRange(manifest.ContentPrefix)}
	if err := r.conn.Kopia.ContentReader().IterateContents(tb.Context(), options, func(content.Info) error { n++; return nil }); err != nil {
		tb.Fatal(err)
	}
	return n
}

// threePoints makes restore points, and pins the last one.
func threePoints(tb testing.TB, r *Repository) (ids []string) {
	tb.Helper()
	disk := &memory{data: []byte("varve")}
	for i := range 3 {
		p, err := r.Backup(tb.Context(), Request{Source: testSource, Time: time.Unix(int64(i+1), 0), Disks: []DiskSource{disk.source(false)}})
		if err != nil {
			tb.Fatal(err)
		}
		ids = append(ids, p.ID)
	}
	if _, err := r.Pin(tb.Context(), ids[2], []string{"old"}, nil); err != nil {
		tb.Fatal(err)
	}
	return ids
}

// manyManifests stores more contents with manifests than kopia leaves alone.
func manyManifests(ctx context.Context, tb testing.TB, w repo.DirectRepositoryWriter) {
	tb.Helper()
	for i := range 20 {
		_, err := w.PutManifest(ctx, map[string]string{manifest.TypeLabelKey: "test"}, i)
		if err == nil {
			err = w.Flush(ctx)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

func listed(tb testing.TB, r *Repository) (ids []string) {
	tb.Helper()
	points, err := r.List(tb.Context(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	for _, p := range points {
		ids = append(ids, p.ID)
	}
	return ids
}

// One process deletes while another, which does not know that yet, stores manifests. What was deleted stays deleted.
func TestMerge_keepsDeletionsDeleted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "one", cached)
	one, err := s.open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	ids := threePoints(t, one)
	two, err := s.open(t.Context(), s.connect(t, "two", cached))
	if err != nil {
		t.Fatal(err)
	}
	ctx, w, err := two.conn.Kopia.NewDirectWriter(t.Context(), repo.WriteSessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.DisableIndexRefresh()
	if err := one.Delete(t.Context(), ids[1]); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*Repository{one, two} {
		writing := w
		if x == one {
			if _, writing, err = one.conn.Kopia.NewDirectWriter(t.Context(), repo.WriteSessionOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		manyManifests(ctx, t, writing)
		if _, err := engine.PointExists(ctx, writing, ""); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(writing.Close(ctx), x.Close(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	for _, mode := range []MaintenanceMode{QuickMaintenance, FullMaintenance} {
		r, err := s.open(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if got := listed(t, r); !slices.Equal(got, []string{ids[0], ids[2]}) {
			verdict.Errorf(t, "%s was deleted, and now there are %v", ids[1], got)
		}
		if err := errors.Join(r.Maintain(t.Context(), MaintenanceOptions{Mode: mode}), r.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
}

// Reading stores nothing, however many contents with manifests there are. Maintenance merges them.
func TestMerge_isMaintenancesAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "host", cached)
	r, err := s.open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	ids := threePoints(t, r)
	err = r.Delete(t.Context(), ids[0])
	if err == nil {
		err = repo.DirectWriteSession(t.Context(), r.conn.Kopia, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
			manyManifests(ctx, t, w)
			return nil
		})
	}
	if err := errors.Join(err, r.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	stored := s.stored.Load()
	r = s.opened(t, config)
	if got := listed(t, r); !slices.Equal(got, ids[1:]) {
		verdict.Errorf(t, "%v, and not %v", got, ids[1:])
	}
	if n := manifestContents(t, r); n < 20 || s.stored.Load() != stored {
		t.Errorf("reading stored %d bytes, and there are %d contents", s.stored.Load()-stored, n)
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: QuickMaintenance}); err != nil {
		t.Fatal(err)
	}
	if n := manifestContents(t, r); n >= maintain.MergeThreshold {
		t.Errorf("%d contents after maintenance", n)
	}
	if got := listed(t, r); !slices.Equal(got, ids[1:]) {
		verdict.Errorf(t, "%v after maintenance, and not %v", got, ids[1:])
	}
	if p, err := r.Get(t.Context(), ids[2]); err != nil || !slices.Equal(p.Pins, []string{"old"}) {
		verdict.Errorf(t, "after maintenance: %+v, %v", p, err)
	}
}

// Every connection's storage is read-only where kopia asks, which keeps kopia from merging manifests on the side.
func TestOnlyMaintenanceMergesManifests_whateverTheStorage(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler()) // This is an empty bucket, as far as this test asks.
	defer server.Close()
	for _, c := range []blob.ConnectionInfo{
		{Type: "filesystem", Config: &filesystem.Options{Path: t.TempDir()}},
		{Type: "s3", Config: (&S3{Endpoint: server.Listener.Addr().String(), Bucket: "bucket", Region: "r", PlainHTTP: true, AccessKey: "a", SecretKey: "s"}).Options()},
	} {
		st, err := blob.NewStorage(t.Context(), c, true)
		if err != nil {
			t.Fatalf("%s: %v", c.Type, err)
		}
		if !st.IsReadOnly() {
			t.Errorf("%s: kopia would write whenever it reads", c.Type)
		}
		if err := st.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A machine whose clock is behind can delete what a machine wrote whose clock is ahead: restore points, pins and locks.
func TestLock_whenClocksDiffer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "host", cached)
	r, err := s.open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s.move(time.Hour)
	ids := threePoints(t, r)
	_, l, err := r.conn.Lock(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	s.move(-time.Hour)
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if p, err := r.Pin(t.Context(), ids[2], []string{"new"}, []string{"old"}); err != nil || !slices.Equal(p.Pins, []string{"new"}) {
		t.Errorf("%+v, %v", p, err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = s.opened(t, config)
	if got := listed(t, r); !slices.Equal(got, ids[1:]) {
		verdict.Errorf(t, "%v, and not %v", got, ids[1:])
	}
	if p, err := r.Get(t.Context(), ids[2]); err != nil || !slices.Equal(p.Pins, []string{"new"}) {
		verdict.Errorf(t, "%+v, %v", p, err)
	}
	if left, err := r.conn.Kopia.FindManifests(t.Context(), map[string]string{manifest.TypeLabelKey: engine.LockType}); err != nil || len(left) > 0 {
		t.Errorf("locks left: %v, %v", left, err)
	}
}

// A connection was idle while another machine merged the manifests and freed the old ones. It still lists and changes restore
// points.
func TestMerge_idleConnectionsFollow(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(context.Context, *Repository, *memory, string) error{
		"list": func(ctx context.Context, r *Repository, _ *memory, _ string) error {
			_, err := r.List(ctx, nil)
			return err
		},
		"back up": func(ctx context.Context, r *Repository, d *memory, _ string) error {
			_, err := r.Backup(ctx, Request{Source: testSource, Disks: []DiskSource{d.source(false)}})
			return err
		},
		"delete": func(ctx context.Context, r *Repository, _ *memory, id string) error { return r.Delete(ctx, id) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			idle, other := s.opened(t, s.connect(t, "idle", !cached)), s.opened(t, s.connect(t, "other", !cached))
			d := &memory{data: make([]byte, mib)}
			var p *RestorePoint
			for range maintain.MergeThreshold {
				p = mustBackUp(t, other, Request{Source: testSource, Disks: []DiskSource{d.source(false)}})
			}
			refresh(t, idle)
			for range 3 {
				s.move(time.Minute)
				if err := other.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
					t.Fatal(err)
				}
			}
			if err := do(t.Context(), idle, d, p.ID); err != nil {
				t.Error(err)
			}
		})
	}
}
