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
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/maintenancestats"
	"github.com/kopia/kopia/repo/object"

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
		"mark of nobody": func(t *testing.T, r *Repository, other *RestorePoint) { deleteContent(t, r, firstBlock(t, r, other)) },
		"failed collection": func(t *testing.T, r *Repository, _ *RestorePoint) {
			failed := errors.New("a content is missing")
			err := repo.DirectWriteSession(t.Context(), r.rep, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
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
			err := repo.DirectWriteSession(t.Context(), r.rep, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
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

func TestMarkHistory_explainsWhatCannotBeOfTheRestorePoint(t *testing.T) {
	t.Parallel()
	at := func(hours float64) time.Time { return time.Unix(1e9, 0).Add(time.Duration(hours * float64(time.Hour))) }
	run := func(from, to float64) maintenance.RunInfo {
		return maintenance.RunInfo{Start: at(from), End: at(to), Success: true}
	}
	// The restore point was made from 10 to 11 o'clock.
	for name, c := range map[string]struct {
		collections, rewrites []maintenance.RunInfo
		marked                float64
		want                  bool
	}{
		"before it began":                            {nil, nil, 9.5, true},
		"while it was made":                          {nil, nil, 10.5, false},
		"by a clock that is slow":                    {nil, nil, 9.9, false},
		"after it, by nobody":                        {nil, nil, 12, false},
		"by a collection that saw it":                {[]maintenance.RunInfo{run(12, 13)}, nil, 12.5, true},
		"after a collection that saw it":             {[]maintenance.RunInfo{run(12, 13)}, nil, 20, true},
		"before a collection that saw it":            {[]maintenance.RunInfo{run(12, 13)}, nil, 11.5, false},
		"by a collection that began just after it":   {[]maintenance.RunInfo{run(11.1, 13)}, nil, 12.5, false},
		"by a collection that began before it":       {[]maintenance.RunInfo{run(9, 13)}, nil, 12.5, false},
		"by the first of several that saw it":        {[]maintenance.RunInfo{run(14, 15), run(12, 13), run(3, 4)}, nil, 12, true},
		"moved later":                                {[]maintenance.RunInfo{run(3, 4)}, []maintenance.RunInfo{run(12, 12.1)}, 12.05, true},
		"moved later, when it may be its own":        {[]maintenance.RunInfo{run(10, 10.5)}, []maintenance.RunInfo{run(12, 12.1)}, 12.05, false},
		"between two moves, by a collection unknown": {nil, []maintenance.RunInfo{run(12, 12.1), run(14, 14.1)}, 13, false},
	} {
		schedule := &maintenance.Schedule{Runs: map[maintenance.TaskType][]maintenance.RunInfo{
			maintenance.TaskSnapshotGarbageCollection: c.collections, maintenance.TaskRewriteContentsQuick: c.rewrites,
		}}
		if got := newMarkHistory(at(10), at(11), schedule).explains(at(c.marked)); got != c.want {
			t.Errorf("%s: explained: %v", name, got)
		}
	}
}

// countedIndex has some contents, one of which is marked as deleted, and counts how often it is asked.
type countedIndex struct {
	contentReader
	deleted content.ID
	looks   int
}

func (c *countedIndex) ContentInfo(_ context.Context, id content.ID) (content.Info, error) {
	c.looks++
	return content.Info{ContentID: id, Deleted: id == c.deleted}, nil
}

// Most blocks of a sparse disk are the same zeroes. An incremental looks up each run of those that it keeps once in the index.
func TestAlive_looksARunOfBlocksUpOnce(t *testing.T) {
	t.Parallel()
	zero, data, gone := contentNumber(t, 1), contentNumber(t, 2), contentNumber(t, 3)
	blocks := slices.Concat(slices.Repeat([]object.ID{object.DirectObjectID(zero)}, 500), []object.ID{object.DirectObjectID(data)},
		slices.Repeat([]object.ID{object.DirectObjectID(zero)}, 500))
	index := &countedIndex{deleted: gone}
	if err := contentsAlive(t.Context(), index, blocks...); err != nil || index.looks != 3 {
		t.Errorf("%d looks for three runs: %v", index.looks, err)
	}
	if err := contentsAlive(t.Context(), index, append(blocks, object.DirectObjectID(gone))...); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the last block is marked as deleted: %v", err)
	}
}

func contentNumber(t *testing.T, n byte) content.ID {
	t.Helper()
	id, err := content.IDFromHash("", []byte{n, 15: 0})
	if err != nil {
		t.Fatal(err)
	}
	return id
}
