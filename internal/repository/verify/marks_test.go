package verify

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

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
		if got := newMarkHistory(at(10), at(11), schedule).explainsMark(at(c.marked)); got != c.want {
			t.Errorf("%s: explained: %v", name, got)
		}
	}
}

// countedIndex has some contents, one of which is marked as deleted, and counts how often it is asked.
type countedIndex struct {
	table.ContentReader
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
	if err := CheckContents(t.Context(), index, blocks...); err != nil || index.looks != 3 {
		t.Errorf("%d looks for three runs: %v", index.looks, err)
	}
	if err := CheckContents(t.Context(), index, append(blocks, object.DirectObjectID(gone))...); !errors.Is(err, errclass.Corrupt) {
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
