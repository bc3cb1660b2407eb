package repository

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotgc"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/maintain"
	"github.com/varvebackup/varve/test/verdict"
)

// deletions says for each content whether it is marked as deleted.
func deletions(t *testing.T, r *Repository) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := r.conn.Kopia.ContentReader().IterateContents(t.Context(), content.IterateOptions{IncludeDeleted: true}, func(info content.Info) error {
		if info.ContentID.Prefix() != "m" {
			out[info.ContentID.String()] = info.Deleted
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// On copies of one repository, kopia's garbage collection and this one give the same result: with restore points that share
// parts, deleted ones, a lease, and a content that is marked as deleted and in use.
func TestGarbageCollection_isThatOfKopia(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	random := rand.New(rand.NewPCG(5, 6))
	disk := &memory{data: make([]byte, 130*mib)}
	var points []*RestorePoint
	for i := range 5 {
		disk.write(random, extent.Extent{Offset: random.Int64N(128 * mib), Length: 2 * mib}, false)
		p, err := r.Backup(t.Context(), Request{
			Source: testSource, Time: time.Unix(int64(i), 0),
			Disks: []DiskSource{disk.source(i > 0)}, Definition: []byte(testDefinition),
		})
		if err != nil {
			t.Fatal(err)
		}
		points = append(points, p)
	}
	kept, err := r.conn.FindPoint(t.Context(), points[3].ID)
	if err != nil {
		t.Fatal(err)
	}
	inUse := firstBlock(t, r, points[4])
	err = r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		m := *kept.Manifest
		m.Tags, m.IncompleteReason = map[string]string{engine.TagLease: "1"}, engine.IncompleteReason
		if _, err := snapshot.SaveSnapshot(ctx, w, &m); err != nil {
			return err
		}
		return w.ContentManager().DeleteContent(ctx, inUse)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), points[0].ID, points[1].ID, points[3].ID); err != nil {
		t.Fatal(err)
	}
	for name, safety := range map[string]maintenance.SafetyParameters{"at once": maintenance.SafetyNone, "in its time": maintenance.SafetyFull} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := collected(t, config, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
				return snapshotgc.Run(ctx, w, true, safety, w.Time())
			})
			deleted := 0
			for _, gone := range want {
				if gone {
					deleted++
				}
			}
			if want[inUse.String()] || (deleted > 0) != (safety == maintenance.SafetyNone) || deleted == len(want) {
				t.Errorf("kopia deleted %d of %d contents: this test does not test anything", deleted, len(want))
			}
			got := collected(t, config, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
				return maintain.CollectGarbage(ctx, w, safety, w.Time())
			})
			if diff := cmp.Diff(want, got); diff != "" {
				verdict.Errorf(t, "%s", diff)
			}
			// A filter that is much too small keeps garbage. Nothing else differs.
			got = collected(t, config, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
				return maintain.NewCollector(w, safety, w.Time(), maintain.NewFilterOfBits(int64(len(want)))).Run(ctx)
			})
			kept := 0
			for id, gone := range want {
				switch {
				case gone && !got[id]:
					kept++
				case gone != got[id]:
					verdict.Errorf(t, "content %s: deleted %v", id, got[id])
				}
			}
			t.Logf("a small filter keeps %d of %d contents", kept, deleted)
		})
	}
}

// collected runs collect on a copy of the repository, and says for each content whether it is marked as deleted afterwards.
func collected(t *testing.T, config string, collect func(context.Context, repo.DirectRepositoryWriter) error) map[string]bool {
	t.Helper()
	fresh := copyRepository(t, config)
	if err := fresh.conn.Change(t.Context(), "test", collect); err != nil {
		t.Fatal(err)
	}
	return deletions(t, fresh)
}

// firstBlock returns a content with data of a restore point's disk.
func firstBlock(t *testing.T, r *Repository, p *RestorePoint) content.ID {
	t.Helper()
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := range image.List {
		table, err := image.ReadRegion(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range table {
			if id, _, ok := e.Object.ContentID(); ok && !image.IsHole(e) {
				return id
			}
		}
	}
	t.Fatal("the disk is empty")
	return content.EmptyID
}

// copyRepository opens a copy of a filesystem repository.
func copyRepository(t *testing.T, config string) *Repository {
	t.Helper()
	dir := t.TempDir()
	at := Location{Directory: filepath.Join(dir, "blobs")}
	if err := os.CopyFS(at.Directory, os.DirFS(blobsOf(config))); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "config", "repository.config")
	if err := Connect(t.Context(), copied, at, testPassword, ConnectOptions{Host: "host", User: "varve"}); err != nil {
		t.Fatal(err)
	}
	return open(t, copied)
}

// While a content is missing that a restore point needs, nothing is collected, because its index may be lost.
func TestGarbageCollection_failsWhileAContentIsMissing(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk, first := twoRegions(t, r)
	next, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(true)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	before := deletions(t, r)
	hidden := firstBlock(t, r, next)
	err = repo.DirectWriteSession(t.Context(), r.conn.Kopia, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return maintain.NewCollector(withoutContent{w, hidden}, maintenance.SafetyNone, w.Time(), maintain.NewContentFilter(0)).Run(ctx)
	})
	if err == nil {
		t.Error("collected")
	}
	if diff := cmp.Diff(before, deletions(t, r)); diff != "" {
		verdict.Errorf(t, "%s", diff)
	}
}

// withoutContent is a repository whose index lacks one content.
type withoutContent struct {
	repo.DirectRepositoryWriter
	hidden content.ID
}

func (w withoutContent) ContentReader() content.Reader {
	return withoutContentReader{w.DirectRepositoryWriter.ContentReader(), w.hidden}
}

type withoutContentReader struct {
	content.Reader
	hidden content.ID
}

func (r withoutContentReader) ContentInfo(ctx context.Context, id content.ID) (content.Info, error) {
	if id == r.hidden {
		return content.Info{}, content.ErrContentNotFound
	}
	return r.Reader.ContentInfo(ctx, id)
}
