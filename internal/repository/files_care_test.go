package repository

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/files"
	"github.com/varvebackup/varve/test/verdict"
)

func TestMaintain_keepsFilesAndFreesThoseOfDeletedPoints(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.opened(t, s.connect(t, "host", !cached))
	m := newTree(t)
	m.everything()
	first := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	m.file("noise", noiseBytes(3<<20), 0o644)
	second := mustBackUpFiles(t, r, filesRequest(m.root, 2))
	want := readTree(t, m.root)
	m.check(os.Remove(m.path("noise")))
	third := mustBackUpFiles(t, r, filesRequest(m.root, 3))
	maintain := func() {
		for range 3 {
			s.move(25 * time.Hour)
			if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
				t.Fatal(err)
			}
		}
		refresh(t, r)
	}
	if err := r.Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	maintain()
	compareTrees(t, want, readTree(t, mustRestoreFiles(t, r, second)))
	before := indexed(t, r)
	if err := r.Delete(t.Context(), second.ID); err != nil {
		t.Fatal(err)
	}
	maintain()
	if freed := before - indexed(t, r); freed < 3<<20 {
		t.Errorf("%d bytes were freed", freed)
	}
	compareTrees(t, readTree(t, m.root), readTree(t, mustRestoreFiles(t, r, third)))
	if report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100}); err != nil || report.Damaged() {
		verdict.JudgeErrorf(t, err == nil, "%v, %+v", err, report)
	}
}

func noiseBytes(n int) []byte {
	return newBitmapDisk(n).data
}

// contentOf returns where the content of a file is.
func contentOf(t *testing.T, r *Repository, p *RestorePoint, path string) content.Info {
	t.Helper()
	var id content.ID
	root := &snapshot.DirEntry{Name: ".", Type: snapshot.EntryTypeDirectory, ObjectID: p.Files.Tree}
	err := files.Walk(t.Context(), r.conn.Reader(), root, 1, files.Visitor{
		Visit: func(_ context.Context, dir string, e *snapshot.DirEntry) (bool, error) {
			if files.PathOf(dir, e.Name) == path {
				id, _, _ = e.ObjectID.ContentID()
			}
			return e.Type == snapshot.EntryTypeDirectory, nil
		},
		Unreadable: func(_ string, _ *snapshot.DirEntry, err error) error { return err },
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := r.conn.Kopia.ContentReader().ContentInfo(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestVerify_namesDamagedFiles(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"dir/sub/broken \xff", "dir", "."} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			r, config := newRepository(t)
			m := newTree(t)
			m.manyFiles(50)
			before := mustBackUpFiles(t, r, filesRequest(m.root, 1))
			m.file("dir/sub/broken \xff", noiseBytes(50000), 0o644)
			p := mustBackUpFiles(t, r, filesRequest(m.root, 2))
			if report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100}); err != nil || report.Damaged() {
				verdict.JudgeFatalf(t, err == nil, "before the damage: %v, %+v", err, report)
			}
			info := contentOf(t, r, p, path)
			file := blobFiles(t, config, string(info.PackBlobID))[0]
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			data[info.PackOffset+info.PackedLength/2] ^= 1
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100})
			if err != nil || len(report.Damage) != 1 {
				t.Fatalf("%v, %+v", err, report)
			}
			if d := report.Damage[0]; d.Point.ID != p.ID || d.File != path || d.Disk != FilesName {
				t.Errorf("%+v", d)
			}
			if err := r.RestoreFiles(t.Context(), FilesRestoreRequest{ID: p.ID, Directory: t.TempDir()}); !errors.Is(err, errclass.Corrupt) {
				t.Errorf("the restore: %v", err)
			}
			mustRestoreFiles(t, r, before)
		})
	}
}

func TestRepair_bringsBackLostFiles(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	m := newTree(t)
	m.everything()
	q := filesRequest(m.root, 1)
	q.Group, q.Labels = "group", map[string]string{"a": "b"}
	p := mustBackUpFiles(t, r, q)
	if _, err := r.Pin(t.Context(), p.ID, []string{"keep"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), p.ID); !errors.Is(err, errclass.Conflict) {
		t.Errorf("a pinned restore point was deleted: %v", err)
	}
	found, err := r.conn.FindPoint(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	err = r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return engine.RemoveManifest(ctx, w, found.Manifest.ID)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("maintenance while it is lost: %v", err)
	}
	report, err := Repair(t.Context(), config, testPassword, false)
	if err != nil || !slices.Contains(report.Points, p.ID) {
		t.Fatalf("%v, %+v", err, report)
	}
	refresh(t, r)
	listed, err := r.ListSelected(t.Context(), Filter{Group: "group", Labels: map[string]string{"a": "b"}})
	if err != nil || len(listed) != 1 || listed[0].Files.Tree != p.Files.Tree {
		verdict.Fatalf(t, "%v, %+v", err, listed)
	}
	compareTrees(t, readTree(t, m.root), readTree(t, mustRestoreFiles(t, r, listed[0])))
}

// A volume's history may have disks and files, and neither is taken for the other.
func TestBackupFiles_sharesItsHistoryWithDisks(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	m := newTree(t)
	m.manyFiles(10)
	first := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	d := newBitmapDisk(4 * mib)
	d.add("monday")
	disk := mustBackUp(t, r, d.request("", "monday", 2))
	m.pass()
	m.file("new", nil, 0o644)
	second := mustBackUpFiles(t, r, filesRequest(m.root, 3))
	if second.Files.Parent != first.ID {
		t.Errorf("the parent is %q", second.Files.Parent)
	}
	next := mustBackUp(t, r, d.request("monday", "tuesday", 4))
	if next.Disks[0].Parent != disk.ID || next.Files != nil {
		t.Errorf("%+v", next)
	}
	if err := r.RestoreFiles(t.Context(), FilesRestoreRequest{ID: disk.ID, Directory: t.TempDir()}); !errors.Is(err, errclass.Invalid) {
		t.Errorf("the files of a disk: %v", err)
	}
	if _, err := second.Disk("root"); !errors.Is(err, errclass.NotFound) {
		t.Errorf("the disk of files: %v", err)
	}
	listed, err := r.List(t.Context(), &testSource)
	if err != nil || len(listed) != 4 {
		t.Errorf("%d restore points, %v", len(listed), err)
	}
}
