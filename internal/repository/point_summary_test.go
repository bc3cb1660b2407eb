package repository

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/test/verdict"
)

// If a manifest does not describe its restore point, or describes another directory, the directory is read, and the result is the
// same.
func TestSummary_isReadOnlyIfItIsOfTheDirectory(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*snapshot.Manifest){
		"as written":      func(*snapshot.Manifest) {},
		"none":            func(m *snapshot.Manifest) { m.Description = "" },
		"somebody's text": func(m *snapshot.Manifest) { m.Description = "{before the upgrade}" },
		"of another one": func(m *snapshot.Manifest) {
			m.Description = `{"root":"` + m.RootEntry.ObjectID.String() + `","format":1,"id":"0"}`
		},
		"of a version to come": func(m *snapshot.Manifest) {
			m.Description = `{"root":"` + m.RootEntry.ObjectID.String() + `","format":3,"id":"` + m.Tags[engine.TagID] + `"}`
		},
		"of another directory": func(m *snapshot.Manifest) {
			m.Description = `{"root":"k709f757b66fdfb48d0f8323744f1bd7e","format":1,"id":"` + m.Tags[engine.TagID] + `","time":"2020-01-01T00:00:00Z","disks":null}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := newRepository(t)
			disk := &memory{data: []byte("varve")}
			want, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
			if err != nil {
				t.Fatal(err)
			}
			err = r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
				s, err := r.conn.FindPoint(ctx, want.ID)
				if err != nil {
					return err
				}
				change(s.Manifest)
				if _, err := snapshot.SaveSnapshot(ctx, w, s.Manifest); err != nil {
					return err
				}
				return s.Remove(ctx, w)
			})
			if err != nil {
				t.Fatal(err)
			}
			got, err := r.Get(t.Context(), want.ID)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(RestorePoint{}, "Snapshot"), cmp.Comparer(func(a, b object.ID) bool { return a == b })); diff != "" {
				verdict.Errorf(t, "%s", diff)
			}
			same(t, r, got, disk.data)
		})
	}
}

// What the manifest says is not mistaken for what is stored.
func TestVerify_tellsAManifestThatContradictsItsDirectory(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk := &memory{data: []byte("varve")}
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	err = r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		s, err := r.conn.FindPoint(ctx, p.ID)
		if err != nil {
			return err
		}
		lie := *p
		lie.Time = time.Unix(2, 0)
		if s.Manifest.Description, err = lie.Summarize(s.Manifest.RootEntry.ObjectID); err != nil {
			return err
		}
		_, err = snapshot.SaveSnapshot(ctx, w, s.Manifest)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.Verify(t.Context(), VerifyOptions{})
	if err != nil || report.Unlisted == nil || len(report.Points) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
