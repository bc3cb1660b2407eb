package repository

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/fs"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/snapshotfs"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/maintain"
	"github.com/varvebackup/varve/test/verdict"
)

// testDefinition has what package json would write in another way.
const testDefinition = `{ "vm": {"name":"web",  "userData":"<a&b>\u00e4ä", "cores":1.0, "cores":2},
	"secrets": ["hunter2"] }`

// defined makes a restore point of a small disk with a definition; nil: with none.
func defined(tb testing.TB, r *Repository, second int64, definition []byte) *RestorePoint {
	tb.Helper()
	return mustBackUp(tb, r, definedRequest(second, definition))
}

func definedRequest(second int64, definition []byte) Request {
	disk := &memory{data: []byte("varve"), point: int(second)}
	return Request{
		Source: testSource, Time: time.Unix(second, 0), Disks: []DiskSource{disk.source(false)}, Definition: definition,
	}
}

// sameDefinition compares the definition of a restore point with what was stored.
func sameDefinition(tb verdict.TB, r *Repository, p *RestorePoint, want string) {
	tb.Helper()
	got, err := r.Definition(context.Background(), p)
	if err != nil {
		tb.Fatalf("%v", err)
		return
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		verdict.Errorf(tb, "the definition of restore point %s came back otherwise: %s", p.ID, diff)
	}
}

// A definition comes back byte for byte, by way of the list as well as of the directory, and from a manifest that a pin has
// replaced.
func TestDefinition_comesBack(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	p := defined(t, r, 1, []byte("\n "+testDefinition+"\n"))
	without := defined(t, r, 2, nil)
	if p.Definition == nil || p.Definition.Bytes != int64(len(testDefinition)) {
		t.Fatalf("%+v", p.Definition)
	}
	if p, err := r.Pin(t.Context(), p.ID, []string{"keep"}, nil); err != nil {
		t.Fatal(err)
	} else {
		sameDefinition(t, r, p, testDefinition)
	}
	fresh := open(t, config)
	points, err := fresh.List(t.Context(), &testSource)
	if err != nil || len(points) != 2 {
		t.Fatalf("%+v, %v", points, err)
	}
	sameDefinition(t, fresh, points[0], testDefinition)
	if text, err := json.Marshal(points); err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("the list has secrets, or none can be made: %v", err)
	}
	stored, err := fresh.conn.FindPoint(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stored.Manifest.Description, "hunter2") {
		t.Error("the manifest has secrets")
	}
	direct, err := engine.ReadPointDirectory(t.Context(), fresh.conn.Reader(), stored)
	if err != nil {
		t.Fatal(err)
	}
	sameDefinition(t, fresh, direct, testDefinition)
	if _, err := fresh.Definition(t.Context(), without); !errors.Is(err, errclass.NotFound) {
		t.Errorf("a restore point without a definition: %v", err)
	}
}

// kopia's reader finds the definition as a file beside the disks.
func TestDefinition_isAFileToKopia(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	p := defined(t, r, 1, []byte(testDefinition))
	m, err := r.conn.FindPoint(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	root, err := snapshotfs.SnapshotRoot(r.conn.Kopia, m.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	e, err := root.(fs.Directory).Child(t.Context(), "varve.definition")
	if err != nil {
		t.Fatal(err)
	}
	reader, err := e.(fs.File).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	text, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		RestorePoint string          `json:"restorePoint"`
		Definition   json.RawMessage `json:"definition"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if file.RestorePoint != p.ID || string(file.Definition) != testDefinition || e.Size() != int64(len(text)) {
		verdict.Errorf(t, "restore point %q, %d bytes of %d: %s", file.RestorePoint, len(text), e.Size(),
			file.Definition)
	}
}

func TestDefinition_limits(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	quoted := func(bytes int) []byte { return []byte(`"` + strings.Repeat("x", bytes-2) + `"`) }
	deep := func(levels int) []byte {
		return []byte(strings.Repeat("[", levels) + strings.Repeat("]", levels))
	}
	var second int64
	for name, c := range map[string]struct {
		definition []byte
		want       error
	}{
		"the largest":     {quoted(MaxDefinitionBytes), nil},
		"one byte more":   {quoted(MaxDefinitionBytes + 1), errclass.Invalid},
		"the deepest":     {deep(9999), nil},
		"one level more":  {deep(10_000), errclass.Invalid},
		"empty":           {[]byte{}, errclass.Invalid},
		"spaces":          {[]byte("  \n"), errclass.Invalid},
		"no JSON":         {[]byte(`{"hunter2":`), errclass.Invalid},
		"two values":      {[]byte(`{} {}`), errclass.Invalid},
		"out of its file": {[]byte(`{},"restorePoint":"0"`), errclass.Invalid},
	} {
		second++
		p, err := r.Backup(t.Context(), definedRequest(second, c.definition))
		switch {
		case !errors.Is(err, c.want):
			t.Errorf("%s: %v", name, err)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: the error has secrets: %v", name, err)
		case err == nil:
			sameDefinition(t, r, p, string(c.definition))
		}
	}
	taken := definedRequest(second+1, nil)
	taken.Disks[0].Name = DefinitionEntry
	if _, err := r.Backup(t.Context(), taken); !errors.Is(err, errclass.Invalid) {
		t.Errorf("a disk called %s: %v", DefinitionEntry, err)
	}
}

// What says that it is of one restore point is not read as that of another one.
func TestDefinition_isOfItsRestorePoint(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	p, other := defined(t, r, 1, []byte(testDefinition)), defined(t, r, 2, []byte(testDefinition))
	p.Definition = other.Definition
	if _, err := r.Definition(t.Context(), p); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("the definition of another restore point: %v", err)
	}
	own := *other.Definition
	own.Digest = "sha256:00"
	other.Definition = &own
	if _, err := r.Definition(t.Context(), other); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("another digest: %v", err)
	}
}

// A restore point with the ID and the definition of an earlier one shares nothing with it that a garbage collection may
// free that runs while the new one is being published.
func TestDefinition_isNotTakenForStored(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	q := definedRequest(1, []byte(testDefinition))
	q.ID = strings.Repeat("5", 32)
	mustBackUp(t, r, q)
	if err := r.Delete(t.Context(), q.ID); err != nil {
		t.Fatal(err)
	}
	q.flushing = func() {
		err := open(t, config).conn.Change(t.Context(), "test",
			func(ctx context.Context, w repo.DirectRepositoryWriter) error {
				return maintain.CollectGarbage(ctx, w, maintenance.SafetyNone, w.Time())
			})
		if err != nil {
			t.Error(err)
		}
	}
	p := mustBackUp(t, r, q)
	fresh := open(t, config)
	cid, _, ok := p.Definition.Object.ContentID()
	if !ok {
		t.Fatalf("%s is no content", p.Definition.Object)
	}
	if info, err := fresh.conn.Reader().ContentInfo(t.Context(), cid); err != nil || info.Deleted {
		verdict.JudgeErrorf(t, err == nil, "the definition is marked as deleted: %t, %v", info.Deleted, err)
	}
	sameDefinition(t, fresh, p, testDefinition)
}

// alone moves the definition of a restore point into a pack of its own, and returns the path of that pack's file.
func alone(t *testing.T, r *Repository, config string, p *RestorePoint) string {
	t.Helper()
	cid, _, ok := p.Definition.Object.ContentID()
	if !ok {
		t.Fatalf("%s is no content", p.Definition.Object)
	}
	err := r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return w.ContentManager().RewriteContent(ctx, cid)
	})
	if err == nil {
		err = r.conn.Kopia.Refresh(t.Context())
	}
	var info content.Info
	if err == nil {
		info, err = r.conn.Reader().ContentInfo(t.Context(), cid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return blobFiles(t, config, string(info.PackBlobID))[0]
}

// Verification tells which restore point has lost its definition, whether it reads the data or not. Nothing else is damaged.
func TestVerify_tellsOfADefinition(t *testing.T) {
	t.Parallel()
	for harm, want := range map[string]string{
		"lost": "is missing or too short", "short": "is missing or too short",
		"rotten": "has other bytes than were written",
	} {
		for _, percent := range []float64{0, 100} {
			t.Run(fmt.Sprintf("%s, %v percent", harm, percent), func(t *testing.T) {
				t.Parallel()
				r, config := newRepository(t)
				p := defined(t, r, 1, []byte(testDefinition))
				good := defined(t, r, 2, []byte(testDefinition))
				damageFile(t, alone(t, r, config, p), harm)
				fresh := open(t, config)
				if _, err := fresh.Definition(t.Context(), p); !errors.Is(err, errclass.Corrupt) {
					t.Errorf("a damaged definition is read: %v", err)
				}
				report, err := fresh.Verify(t.Context(), VerifyOptions{Percent: percent})
				if err != nil || report.Unlisted != nil || len(report.Damage) != 1 || report.Unrecorded != nil {
					t.Fatalf("%+v, %v", report, err)
				}
				d := report.Damage[0]
				words := d.Err.Error()
				if d.Point.ID != p.ID || d.Disk != DefinitionEntry || !errors.Is(d.Err, errclass.Corrupt) ||
					!strings.HasPrefix(words, "the definition of the machine: blob ") ||
					!strings.HasSuffix(words, want) {
					t.Errorf("%s of restore point %s: %v", d.Disk, d.Point.ID, d.Err)
				}
				same(t, fresh, p, []byte("varve"))
				sameDefinition(t, fresh, good, testDefinition)
				repaired, err := Repair(t.Context(), config, testPassword, false)
				if err != nil || !repaired.Nothing() || len(repaired.Packs) != 1 {
					t.Errorf("repair: %+v, %v", repaired, err)
				}
				// The next restore point is not hurt by what is damaged.
				sameDefinition(t, fresh, defined(t, fresh, 3, []byte(testDefinition)), testDefinition)
			})
		}
	}
}

// A definition that is as it was written, but of another restore point, is damage, too.
func TestVerify_tellsOfAForeignDefinition(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	p, other := defined(t, r, 1, []byte(testDefinition)), defined(t, r, 2, []byte(testDefinition))
	err := r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		s, err := r.conn.FindPoint(ctx, p.ID)
		if err != nil {
			return err
		}
		p.Definition = other.Definition
		session := &session{ctx: ctx, w: nil, r: r, q: &Request{}, id: p.ID}
		if session.w, err = engine.NewMendingWriter(ctx, w); err != nil {
			return err
		}
		if s.Manifest.RootEntry, err = session.writeDirectory(p); err != nil {
			return err
		}
		if s.Manifest.Description, err = p.Summarize(s.Manifest.RootEntry.ObjectID); err != nil {
			return err
		}
		_, err = snapshot.SaveSnapshot(ctx, w, s.Manifest)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.Verify(t.Context(), VerifyOptions{})
	if err != nil || report.Unlisted != nil || len(report.Damage) != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	if d := report.Damage[0]; d.Point.ID != p.ID || !strings.Contains(d.Err.Error(),
		"is of restore point \""+other.ID) {
		t.Errorf("%+v: %v", d, d.Err)
	}
}

// damageFile harms a blob.
func damageFile(t *testing.T, path, harm string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	switch harm {
	case "lost":
		err = os.Remove(path)
	case "short":
		err = os.WriteFile(path, data[:10], 0o600)
	default:
		for i := range len(data) / 2 {
			data[i] ^= 1
		}
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
