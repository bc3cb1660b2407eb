package repository

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/maintenancestats"

	"github.com/varvebackup/varve/internal/extent"
)

const (
	checkedTables = 128
	checkedBytes  = checkedTables * RegionBlocks * 256 * kib
)

// checkedSite makes a site with the restore points of two machines, whose disks are different.
func checkedSite(t *testing.T) (s *site, r *Repository, other *RestorePoint) {
	t.Helper()
	s = newSite(t)
	r = s.opened(t, s.connect(t, "host", !cached))
	publishSynthetic(t, r, testSource, s.now(), syntheticDisk{bytes: checkedBytes, block: 256 * kib, tables: checkedTables})
	other = publishSynthetic(t, r, syntheticSource(1), s.now(), syntheticDisk{bytes: checkedBytes, block: mib, tables: 1})
	return s, r, other
}

// incrementalGETs makes the n-th incremental, of one block, and returns how many GETs it took.
func incrementalGETs(t *testing.T, s *site, r *Repository, n int) int64 {
	t.Helper()
	source := DiskSource{
		Name: "root", Bytes: checkedBytes, Reader: zeroReader{}, Identity: "a", Change: strconv.Itoa(n + 1),
		Changes: &Changes{Since: strconv.Itoa(n), Set: extent.NewSet(extent.Extent{Offset: int64(n) << 30, Length: 1}), Exclusive: true},
	}
	return s.costOf(t, func() error {
		p, err := r.Backup(t.Context(), Request{Source: testSource, Time: s.now(), Disks: []DiskSource{source}})
		if err == nil && p.Disks[0].FullReason != "" {
			t.Errorf("a full backup: %s", p.Disks[0].FullReason)
		}
		return err
	}).gets
}

// Marks of a garbage collection that saw the parent are no reason to read the parent's tables.
func TestClones_marksThatAreExplainedCostNothing(t *testing.T) {
	t.Parallel()
	s, r, other := checkedSite(t)
	s.move(72 * time.Hour)
	if err := r.Delete(t.Context(), other.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(slices.Collect(maps.Values(deletions(t, r))), true) {
		t.Fatal("nothing is marked as deleted: this test does not test anything")
	}
	s.move(time.Hour)
	for n := 1; n <= 3; n++ {
		if gets := incrementalGETs(t, s, r, n); gets >= checkedTables {
			t.Errorf("incremental %d took %d GETs", n, gets)
		}
		s.move(time.Hour)
	}
}

// Marks by somebody who may not have seen the parent, or a garbage collection that failed, make a backup check everything.
func TestClones_doubtMakesABackupCheckEverything(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(*testing.T, *Repository, *RestorePoint){
		"mark of nobody": func(t *testing.T, r *Repository, other *RestorePoint) {
			deleteContent(t, r, firstBlock(t, r, other))
		},
		"failed collection": func(t *testing.T, r *Repository, _ *RestorePoint) {
			failed := errors.New("a content is missing")
			err := repo.DirectWriteSession(t.Context(), r.conn.Kopia, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
				err := maintenance.ReportRun(ctx, w, maintenance.TaskSnapshotGarbageCollection, nil, func() (maintenancestats.Kind, error) { return nil, failed })
				if !errors.Is(err, failed) {
					return err
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		},
		"collection while the parent was made": func(t *testing.T, r *Repository, other *RestorePoint) {
			err := repo.DirectWriteSession(t.Context(), r.conn.Kopia, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
				return maintenance.ReportRun(ctx, w, maintenance.TaskSnapshotGarbageCollection, nil, func() (maintenancestats.Kind, error) {
					deleteContent(t, r, firstBlock(t, r, other))
					return nil, nil
				})
			})
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r, other := checkedSite(t)
			disturb(t, r, other)
			if gets := incrementalGETs(t, s, r, 1); gets < checkedTables {
				t.Errorf("only %d GETs, for %d tables", gets, checkedTables)
			}
		})
	}
}
