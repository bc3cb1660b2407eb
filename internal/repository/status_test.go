package repository

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/maintain"
	"github.com/varvebackup/varve/test/verdict"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	s, err := r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(s.Location, "/blobs") || s.ConfigFile != config || s.Host != "host" || s.User != "varve" || s.ObjectLock != nil || s.FreeBytes == nil {
		t.Errorf("%+v", s)
	}
	if s.Format.Hash != engine.HashAlgorithm || s.Format.Encryption != engine.EncryptionAlgorithm || s.Format.Version == 0 || s.Format.PackBytes == 0 {
		t.Errorf("format %+v", s.Format)
	}
	if s.RestorePoints != 0 || len(s.Sources) != 0 || !s.Maintenance.Last.IsZero() || !s.Maintenance.LastFull.IsZero() {
		t.Errorf("an empty repository has %+v", s)
	}

	disk := &memory{data: []byte(strings.Repeat("varve", 100000))}
	for i, path := range []string{"/b", "/a", "/b"} {
		source := testSource
		source.Path = path
		if _, err := r.Backup(t.Context(), Request{Source: source, Time: time.Unix(int64(i+1), 0), Disks: []DiskSource{disk.source(false)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance}); err != nil {
		t.Fatal(err)
	}
	if s, err = r.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	moment := func(n int64) time.Time { return time.Unix(n, 0).UTC() }
	want := []SourceStatus{
		{Source: Source{Host: "host", User: "varve", Path: "/a"}, RestorePoints: 1, Oldest: moment(2), Latest: moment(2), DiskBytes: 500000},
		{Source: Source{Host: "host", User: "varve", Path: "/b"}, RestorePoints: 2, Oldest: moment(1), Latest: moment(3), DiskBytes: 500000},
	}
	if diff := cmp.Diff(want, s.Sources); diff != "" || s.RestorePoints != 3 {
		t.Errorf("%d restore points: %s", s.RestorePoints, diff)
	}
	if n := int64(len(deletions(t, r))); s.Contents < n || s.IndexMemoryBytes != s.Contents*contentIndexBytes {
		t.Errorf("%d contents in %d bytes of memory, where there are %d blocks and tables", s.Contents, s.IndexMemoryBytes, n)
	}
	m := s.Maintenance
	if m.Owner != maintain.Owner || m.LastFull.IsZero() || m.Last.Before(m.LastFull) || !m.NextFull.After(m.Last) || !m.NextQuick.After(m.Last) || m.Failures != nil {
		t.Errorf("maintenance %+v", m)
	}
}

// The counted blobs are those in the storage, each counted once.
func TestStored(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk := &memory{data: []byte(strings.Repeat("varve", 100000))}
	if _, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}}); err != nil {
		t.Fatal(err)
	}
	got, err := r.Stored(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var want, all BlobStatus
	for _, f := range blobFiles(t, config, "") {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		want.Blobs++
		want.Bytes += info.Size()
	}
	for _, k := range got {
		all.Blobs += k.Blobs
		all.Bytes += k.Bytes
		if k.Blobs == 0 {
			t.Errorf("no blobs of kind %s", k.Kind)
		}
	}
	if all != want {
		t.Errorf("%+v, want %+v", all, want)
	}
}

func TestContentsAreWhatVerifyReads(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk := &memory{data: []byte(strings.Repeat("varve", 100000))}
	if _, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}}); err != nil {
		t.Fatal(err)
	}
	for _, percent := range []float64{0, 50, 100} {
		sample := rand.Uint64()
		n, bytes, err := r.Contents(t.Context(), percent, sample)
		if err != nil {
			t.Fatal(err)
		}
		report, err := r.Verify(t.Context(), VerifyOptions{Percent: percent, Sample: sample})
		if err != nil || n != report.Contents || bytes != report.Bytes {
			t.Errorf("%v%%: %d contents with %d bytes; verify read %d with %d: %v", percent, n, bytes, report.Contents, report.Bytes, err)
		}
	}
}

func TestPins(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk := &memory{data: []byte("disk")}
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	id := p.ID
	for _, step := range []struct{ add, remove, want []string }{
		{add: []string{"b", "a"}, want: []string{"a", "b"}},
		{add: []string{"a"}, want: []string{"a", "b"}},
		{remove: []string{"a", "c"}, want: []string{"b"}},
		{remove: []string{"b"}},
	} {
		if p, err = r.Pin(t.Context(), id, step.add, step.remove); err != nil || p.ID != id || !slices.Equal(p.Pins, step.want) || p.Pinned() != (len(step.want) > 0) {
			t.Fatalf("pins %v, want %v: %v", p, step.want, err)
		}
		// Another connection sees it, once, with the same content.
		points, err := open(t, config).List(t.Context(), nil)
		if err != nil || len(points) != 1 || points[0].ID != id || !slices.Equal(points[0].Pins, step.want) {
			verdict.Fatalf(t, "%v: %v", points, err)
		}
		same(t, r, points[0], disk.data)
	}
	if _, err := r.Pin(t.Context(), engine.NewPointID(), []string{"x"}, nil); !errors.Is(err, errclass.NotFound) {
		t.Errorf("pin what is not there: %v", err)
	}
	for _, bad := range []string{"", "a\nb", "a\xff", strings.Repeat("x", maxPinBytes+1)} {
		if _, err := r.Pin(t.Context(), p.ID, []string{bad}, nil); !errors.Is(err, errclass.Invalid) {
			t.Errorf("pin %q: %v", bad, err)
		}
	}
}

// Two machines that pin at the same moment each replace the manifest that they see. The result is one restore point with both
// pins, which children can still start from, and which can be deleted.
func TestPins_ofTwoMachinesAtOnce(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk, parent := twoRegions(t, r)
	others := []*Repository{open(t, config), open(t, config)}
	for i, other := range others {
		if points, err := other.List(t.Context(), nil); err != nil || len(points) != 1 {
			t.Fatalf("%v, %v", points, err) // It now has the manifests in memory.
		}
		err := repo.WriteSession(t.Context(), other.conn.Kopia, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
			s, err := r.conn.FindPoint(ctx, parent.ID) // as it was before the other one
			if err != nil {
				return err
			}
			s.Manifest.UpdatePins([]string{string(rune('a' + i))}, nil)
			return snapshot.UpdateSnapshot(ctx, w, s.Manifest)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fresh := open(t, config)
	points, err := fresh.List(t.Context(), nil)
	if err != nil || len(points) != 1 || points[0].ID != parent.ID || !slices.Equal(points[0].Pins, []string{"a", "b"}) {
		verdict.Fatalf(t, "%v, %v", points, err)
	}
	p, err := fresh.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(true)}})
	if err != nil || p.Disks[0].Parent != parent.ID || p.Disks[0].FullReason != "" {
		t.Fatalf("%+v, %v", p, err)
	}
	if p, err := fresh.Pin(t.Context(), parent.ID, nil, []string{"b"}); err != nil || !slices.Equal(p.Pins, []string{"a"}) {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := fresh.Pin(t.Context(), parent.ID, nil, []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Delete(t.Context(), parent.ID); err != nil {
		t.Fatal(err)
	}
	if points, err := open(t, config).List(t.Context(), nil); err != nil || len(points) != 1 || points[0].ID != p.ID {
		t.Errorf("%v, %v", points, err)
	}
}

// Maintenance that nobody does is reported, and so are manifests that pile up.
func TestMaintenanceStatus_warns(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		next, created time.Time
		manifests     int
		warnings      int
	}{
		"in time":           {next: now.Add(time.Hour), created: now.Add(-90 * day), manifests: warnManifests},
		"a day late":        {next: now.Add(-day)},
		"days late":         {next: now.Add(-3 * day), warnings: 1},
		"never, and new":    {created: now.Add(-day)},
		"never, and older":  {created: now.Add(-3 * day), warnings: 1},
		"late and manifold": {next: now.Add(-3 * day), manifests: warnManifests + 1, warnings: 2},
	} {
		m := MaintenanceStatus{NextFull: c.next}
		if m.addWarnings(now, c.created, c.manifests); len(m.Warnings) != c.warnings {
			t.Errorf("%s: %q", name, m.Warnings)
		}
	}
}

// kopia's own retention would keep 10 of an hour, and fewer of older ones. Varve's users have not asked for that. A user's pins
// come and go.
func TestPins_kopiasRetentionDeletesNothing(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk := &memory{data: []byte("disk")}
	var first string
	for i := range 12 {
		p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(int64(i+1), 0), Disks: []DiskSource{disk.source(false)}})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = p.ID
		}
	}
	for _, step := range []struct{ add, remove []string }{{add: []string{"a"}}, {remove: []string{"a"}}} {
		if p, err := r.Pin(t.Context(), first, step.add, step.remove); err != nil || len(p.Pins) != len(step.add) {
			t.Fatalf("%+v, %v", p, err)
		}
	}
	for _, step := range []struct{ add, remove []string }{{add: []string{engine.OwnPin}}, {remove: []string{engine.OwnPin}}} {
		if _, err := r.Pin(t.Context(), first, step.add, step.remove); !errors.Is(err, errclass.Invalid) {
			t.Errorf("Varve's own pin, %+v: %v", step, err)
		}
	}
	other := open(t, config)
	if err := repo.WriteSession(t.Context(), other.conn.Kopia, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		deleted, err := policy.ApplyRetentionPolicy(ctx, w, testSource.KopiaSource(), true)
		if len(deleted) > 0 {
			t.Errorf("kopia deletes %v", deleted)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	points, err := open(t, config).List(t.Context(), nil)
	if err != nil || len(points) != 12 || points[0].Pinned() {
		t.Errorf("%d restore points, %v", len(points), err)
	}
}
