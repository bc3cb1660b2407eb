package repository

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/maintenance"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/test/verdict"
)

// kopia does not notice that an index is gone. Verify does, maintenance frees nothing, and repair brings everything back: with
// its pins, and without the restore points that had been deleted.
func TestRepair_bringsALostIndexBack(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk, gone := twoRegions(t, r)
	kept, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(true)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Pin(t.Context(), kept.ID, []string{"keep"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range blobFiles(t, config, storage.IndexPrefix) {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	blind := open(t, config)
	if points, err := blind.List(t.Context(), nil); err != nil || len(points) > 0 {
		t.Fatalf("%v, %v: this test does not test anything", points, err)
	}
	report, err := blind.Verify(t.Context(), VerifyOptions{})
	if err != nil || !errors.Is(report.Unlisted, errclass.Corrupt) {
		t.Errorf("%+v, %v", report, err)
	}
	packs := len(blobFiles(t, config, "p"))
	if err := blind.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Safety: &maintenance.SafetyNone}); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("maintenance: %v", err)
	}
	if n := len(blobFiles(t, config, "p")); n < packs {
		t.Errorf("maintenance freed %d of %d packs", packs-n, packs)
	}
	want := []string{kept.ID}
	if report, err := Repair(t.Context(), config, testPassword, true); err != nil || !slices.Equal(report.Points, want) || report.Contents == 0 {
		t.Errorf("dry run: %+v, %v", report, err)
	}
	if points, err := open(t, config).List(t.Context(), nil); err != nil || len(points) > 0 {
		t.Errorf("the dry run did something: %v, %v", points, err)
	}
	if report, err := Repair(t.Context(), config, testPassword, false); err != nil || report.Contents == 0 {
		t.Errorf("%+v, %v", report, err)
	}
	fresh := open(t, config)
	points, err := fresh.List(t.Context(), nil)
	if err != nil || len(points) != 1 || points[0].ID != kept.ID || !slices.Equal(points[0].Pins, []string{"keep"}) {
		verdict.Fatalf(t, "%+v, %v", points, err)
	}
	same(t, fresh, points[0], disk.data)
	if err := fresh.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Error(err)
	}
	if report, err := Repair(t.Context(), config, testPassword, false); err != nil || !report.Nothing() {
		t.Errorf("there is nothing to repair: %+v, %v", report, err)
	}
	same(t, fresh, points[0], disk.data)
}

// A restore point that another program deleted is not freed without notice: it can be brought back, or forgotten.
func TestRepair_ofARecordWithoutAManifest(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk, point := twoRegions(t, r)
	byKopia := func() {
		t.Helper()
		s, err := r.conn.FindPoint(t.Context(), point.ID)
		if err != nil {
			t.Fatal(err)
		}
		err = r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error { return s.Remove(ctx, w) })
		if err != nil {
			t.Fatal(err)
		}
	}
	byKopia()
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); !errors.Is(err, errclass.Corrupt) {
		t.Errorf("maintenance: %v", err)
	}
	report, err := Repair(t.Context(), config, testPassword, false)
	if err != nil || cmp.Diff(&RepairReport{Points: []string{point.ID}}, report) != "" {
		t.Errorf("%+v, %v", report, err)
	}
	if err := r.conn.Kopia.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	next, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(true)}})
	if err != nil || next.Disks[0].Parent != point.ID {
		t.Fatalf("%+v, %v", next, err)
	}
	same(t, r, next, disk.data)
	byKopia()
	if err := r.Delete(t.Context(), point.ID); err != nil {
		t.Error(err)
	}
	if err := r.Delete(t.Context(), point.ID); !errors.Is(err, errclass.NotFound) {
		t.Errorf("forgotten twice: %v", err)
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Error(err)
	}
}

// A restore point whose record was never stored gets it from maintenance.
func TestMaintenance_storesMissingRecords(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	twoRegions(t, r)
	for _, prefix := range []string{storage.RecordPrefix, string(storage.FormatCopy)} {
		for _, f := range blobFiles(t, config, prefix) {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: QuickMaintenance}); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{storage.RecordPrefix, string(storage.FormatCopy)} {
		blobFiles(t, config, prefix) // It fails if there is none.
	}
	if report, err := r.Verify(t.Context(), VerifyOptions{}); err != nil || report.Damaged() {
		verdict.JudgeErrorf(t, err == nil, "%+v, %v", report, err)
	}
}

// This machine's cache hides no damage from verify.
func TestVerify_readsPastTheCache(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"p", "q", storage.IndexPrefix} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			plain, config := newRepository(t)
			cached := filepath.Join(t.TempDir(), "cached.config")
			o := ConnectOptions{CacheDirectory: t.TempDir(), CacheBytes: 64 * mib}
			if err := Connect(t.Context(), cached, Location{Directory: blobsOf(config)}, testPassword, o); err != nil {
				t.Fatal(err)
			}
			r := open(t, cached)
			disk, _ := twoRegions(t, plain)
			if err := r.conn.Kopia.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			point, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(true)}})
			if err != nil {
				t.Fatal(err)
			}
			same(t, r, point, disk.data) // This puts it into the cache.
			for _, f := range blobFiles(t, config, prefix) {
				data, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				for i := range data {
					data[i] ^= 1
				}
				if err := os.WriteFile(f, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100})
			if err != nil || !report.Damaged() {
				t.Fatalf("%+v, %v", report, err)
			}
			if prefix == storage.IndexPrefix {
				return // Without indexes no disk is known.
			}
			var bytes int64
			for _, d := range report.Damage {
				if d.Extent.Empty() {
					d.Extent.Length = point.Disks[0].Bytes
				}
				bytes += d.Extent.Length
			}
			if want := int64(len(report.Points)) * point.Disks[0].Bytes; bytes != want {
				t.Errorf("%d bytes of %d are said to be damaged: %+v", bytes, want, report.Damage)
			}
		})
	}
}

// A repository whose format is gone is not created again over its data. Connecting to it puts the format back.
func TestRepair_putsAMissingFormatBack(t *testing.T) {
	t.Parallel()
	for name, content := range map[string][]byte{"missing": nil, "not one": []byte("}")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, config := newRepository(t)
			disk, _ := twoRegions(t, r)
			point, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(true)}})
			if err != nil {
				t.Fatal(err)
			}
			file := blobFiles(t, config, "kopia.repository")[0]
			if err = os.Remove(file); content != nil {
				err = os.WriteFile(file, content, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			at := Location{Directory: blobsOf(config)}
			if err := Create(t.Context(), at, "another password", CreateOptions{}); !errors.Is(err, errclass.Conflict) {
				t.Errorf("created over it: %v", err)
			}
			again := filepath.Join(t.TempDir(), "again.config")
			if err := Connect(t.Context(), again, at, "another password", ConnectOptions{}); !errors.Is(err, ErrPassword) {
				t.Errorf("with another password: %v", err)
			}
			if err := Connect(t.Context(), again, at, testPassword, ConnectOptions{}); err != nil {
				t.Fatal(err)
			}
			same(t, open(t, again), point, disk.data)
		})
	}
}

// After a change of the password, the old one opens nothing. The copy follows without a repair.
func TestFormatCopy_followsThePassword(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	twoRegions(t, r)
	const changed = "a newer password"
	if err := r.conn.Kopia.FormatManager().ChangePassword(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	fresh, err := Open(t.Context(), config, changed)
	if err != nil {
		t.Fatal(err)
	}
	if err := fresh.Maintain(t.Context(), MaintenanceOptions{Mode: QuickMaintenance}); err != nil {
		t.Error(err)
	}
	if err := fresh.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := Open(t.Context(), config, testPassword); !errors.Is(err, ErrPassword) {
		t.Errorf("the old password: %v", err)
	}
	if err := os.Remove(blobFiles(t, config, "kopia.repository")[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(t.Context(), config, testPassword, false); err == nil {
		t.Error("repaired with the old password")
	}
	if report, err := Repair(t.Context(), config, changed, false); err != nil || len(report.Format) == 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

// Maintenance keeps the only copy of a format blob that is lost, and says how to put the blob back.
func TestFormatCopy_keepsWhatIsLost(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	if err := os.Remove(blobFiles(t, config, "kopia.blobcfg")[0]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var warnings []error
		o := MaintenanceOptions{Mode: QuickMaintenance, Warn: func(err error) { warnings = append(warnings, err) }}
		if err := r.Maintain(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if len(warnings) != 1 || !strings.Contains(warnings[0].Error(), "kopia.blobcfg") ||
			!strings.Contains(warnings[0].Error(), "`varve repo repair`") {
			t.Errorf("warnings: %v", warnings)
		}
	}
	if report, err := Repair(t.Context(), config, testPassword, false); err != nil ||
		!slices.Contains(report.Format, "kopia.blobcfg") {
		t.Errorf("%+v, %v", report, err)
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{
		Mode: QuickMaintenance,
		Warn: func(err error) { t.Error(err) },
	}); err != nil {
		t.Error(err)
	}
}
