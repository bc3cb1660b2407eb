package repository

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"testing"
	"time"

	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/repository/engine"
)

// manyPoints is how many restore points the tests of lists use.
const manyPoints = 10_000

// putManifests stores the manifests of n restore points of 100 machines. Their directories do not exist, so reading one fails.
func putManifests(tb testing.TB, r *Repository, n int) (ids []string) {
	tb.Helper()
	root := objectID(tb, "k709f757b66fdfb48d0f8323744f1bd7e")
	list := objectID(tb, "Ixe9aba507fb694c7f4e9a37d9aeb0a5f0")
	ctx, w, err := r.conn.Kopia.NewDirectWriter(tb.Context(), repo.WriteSessionOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		var id [16]byte
		binary.BigEndian.PutUint32(id[:], uint32(i)*2654435761)
		p := &RestorePoint{ID: hex.EncodeToString(id[:]), Source: syntheticSource(i % 100), Time: time.Unix(int64(i), 0), Disks: []Disk{{
			Name: "root", Bytes: gib, BlockBytes: mib, Object: list, Zero: root, ZeroTail: root, Digest: "sha256:" + hex.EncodeToString(id[:]), Identity: "a", Change: "1",
		}}}
		about, err := p.Summarize(root)
		if err != nil {
			tb.Fatal(err)
		}
		_, err = snapshot.SaveSnapshot(ctx, w, &snapshot.Manifest{
			Source: p.Source.KopiaSource(), Description: about, StartTime: fs.UTCTimestampFromTime(p.Time), EndTime: fs.UTCTimestampFromTime(p.Time),
			RootEntry: &snapshot.DirEntry{Name: "disks", Type: snapshot.EntryTypeDirectory, ObjectID: root},
			Tags:      map[string]string{engine.TagFormat: engine.FormatTag, engine.TagID: p.ID},
		})
		if err != nil {
			tb.Fatal(err)
		}
		ids = append(ids, p.ID)
	}
	if err := w.Flush(ctx); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(ctx); err != nil {
		tb.Fatal(err)
	}
	return ids
}

// Queries about 10,000 restore points take as many requests as opening the repository.
func TestCost_restorePointsAreListedFromTheirManifests(t *testing.T) { //nolint:tparallel // the subtests count the requests of one site
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "host", !cached)
	ids := putManifests(t, s.opened(t, config), manyPoints)
	source := syntheticSource(7)
	for name, ask := range map[string]func(r *Repository) (points int, err error){
		"list": func(r *Repository) (int, error) {
			points, err := r.List(t.Context(), nil)
			return len(points) - manyPoints + 1, err
		},
		"history": func(r *Repository) (int, error) {
			points, err := r.List(t.Context(), &source)
			return len(points) - manyPoints/100 + 1, err
		},
		"prefix": func(r *Repository) (int, error) {
			points, err := r.ListMatching(t.Context(), ids[1234][:10])
			return len(points), err
		},
		"ID": func(r *Repository) (int, error) {
			_, err := r.Get(t.Context(), ids[4321])
			return 1, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.opened(t, config)
			points := 0
			took := s.costOf(t, func() (err error) {
				points, err = ask(r)
				return err
			})
			t.Logf("%s", took)
			if points != 1 {
				t.Errorf("%d restore points", points)
			}
			if took.gets > 1 || took.heads > 0 || took.lists > 0 || took.puts > 0 { // All manifests are in one content.
				t.Errorf("%d restore points: %s", manyPoints, took)
			}
		})
	}
	t.Run("delete", func(t *testing.T) {
		r := s.opened(t, config)
		took := s.costOf(t, func() error { return r.Delete(t.Context(), ids[:50]...) })
		t.Logf("%s", took)
		const rest = 20 // Deletions make one more content with manifests, and the index is read again.
		if took.gets > rest || took.puts > 50+rest {
			t.Errorf("deleting 50 restore points: %s", took)
		}
	})
}

// BenchmarkList opens a repository with 10,000 restore points and lists them, as `varve disk list` does, on a storage that takes 1 ms to answer.
func BenchmarkList(b *testing.B) {
	s := newSite(b)
	config := s.connect(b, "host", !cached)
	putManifests(b, s.opened(b, config), manyPoints)
	wait := func(blob.ID) { time.Sleep(time.Millisecond) }
	s.asked.Store(&wait)
	s.lists = func() error { wait(""); return nil }
	for b.Loop() {
		points, err := s.opened(b, config).List(b.Context(), nil)
		if err != nil || len(points) < manyPoints {
			b.Fatal(len(points), err)
		}
	}
}

// Whether there is a sign of damage is decided from lists of the blobs and the index. What follows looks only at the restore
// points that were asked for.
func TestCost_pruneLooksForSignsOfDamage(t *testing.T) {
	t.Parallel()
	const tables = 128
	s := newSite(t)
	config := s.connect(t, "host", !cached)
	r := s.opened(t, config)
	publishSynthetic(t, r, testSource, s.now(), syntheticDisk{bytes: 1 << 36, block: 256 * kib, tables: tables})
	other := publishSynthetic(t, r, syntheticSource(1), s.now(), syntheticDisk{bytes: 1 << 36, block: mib, tables: 2})
	sign := func() (doubt bool, took cost) {
		fresh := s.opened(t, config)
		took = s.costOf(t, func() (err error) {
			doubt, err = fresh.SignOfDamage(t.Context())
			return err
		})
		return doubt, took
	}
	doubt, took := sign()
	t.Logf("%s", took)
	if doubt || took.gets > 20 || took.lists > 10 {
		t.Errorf("a sign of damage: %v, %s", doubt, took)
	}
	took = s.costOf(t, func() error {
		report, err := r.Verify(t.Context(), VerifyOptions{Points: func(p *RestorePoint) bool { return p.Source == other.Source }})
		if err == nil && (len(report.Points) != 1 || report.Damaged()) {
			t.Errorf("%+v", report)
		}
		return err
	})
	if took.gets >= tables {
		t.Errorf("verifying one of two histories: %s", took)
	}
	info, err := r.conn.Kopia.ContentReader().ContentInfo(t.Context(), firstBlock(t, r, other))
	if err != nil {
		t.Fatal(err)
	}
	err = r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return w.BlobStorage().DeleteBlob(ctx, info.PackBlobID)
	})
	if err != nil {
		t.Fatal(err)
	}
	if doubt, _ := sign(); !doubt {
		t.Error("a missing pack is no sign of damage")
	}
}
