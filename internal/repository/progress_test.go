package repository

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/extent"
)

// told makes a backup and returns the progress that it reported. It checks that no number exceeds its total.
func told(t *testing.T, r *Repository, q Request) (*RestorePoint, []Progress) {
	t.Helper()
	var all []Progress
	q.Source = testSource
	q.Progress = func(p Progress) { all = append(all, p) }
	point, err := r.Backup(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.ScannedBytes > p.TotalBytes || p.ReadBytes > p.PlannedBytes || p.PlannedBytes > p.TotalBytes || p.DeduplicatedBytes > p.ChangedBytes {
			t.Errorf("%+v", p)
		}
	}
	return point, all
}

func wantProgress(t *testing.T, got, want Progress) {
	t.Helper()
	uploaded := got.UploadedBytes
	got.UploadedBytes, want.UploadedBytes = 0, 0
	got.Plans, want.Plans = 0, 0
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	// Noise does not compress, and tables are small.
	if fresh := want.ChangedBytes - want.DeduplicatedBytes; uploaded < fresh || uploaded > fresh+256*kib {
		t.Errorf("%d bytes uploaded, %d are new", uploaded, fresh)
	}
}

func TestProgressOfABackup(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	random := rand.New(rand.NewPCG(5, 6))
	disk := &memory{data: make([]byte, 66*mib+77)}
	for _, e := range []extent.Extent{{Offset: mib, Length: 512 * kib}, {Offset: 64 * mib, Length: 512 * kib}} {
		disk.write(random, e, false)
	}
	blocks := func(n int64) int64 { return n * 256 * kib }
	total := int64(len(disk.data))
	source := disk.source(false)
	source.Data = &extent.Set{}
	*source.Data = extent.NewSet(extent.Extent{Offset: mib, Length: 512 * kib}, extent.Extent{Offset: 64 * mib, Length: mib})
	_, all := told(t, r, Request{Disks: []DiskSource{source}, Time: time.Unix(1, 0)})
	// Two blocks, and four of which two are zero.
	wantProgress(t, all[len(all)-1], Progress{TotalBytes: total, ScannedBytes: total, PlannedBytes: blocks(6), ReadBytes: blocks(6), ChangedBytes: blocks(4)})
	if all[0].PlannedBytes != blocks(6) || all[0].ReadBytes != 0 {
		t.Errorf("in the beginning: %+v", all[0])
	}

	// The same again, compared with nothing: everything is read and found, and only its tables are uploaded.
	_, all = told(t, r, Request{Disks: []DiskSource{disk.source(false)}, Time: time.Unix(2, 0), Parent: ParentNone})
	wantProgress(t, all[len(all)-1], Progress{TotalBytes: total, ScannedBytes: total, PlannedBytes: total, ReadBytes: total, ChangedBytes: blocks(4), DeduplicatedBytes: blocks(4)})

	// An incremental reads what changed: a block with other data, one that is the same, and one that becomes zero.
	disk.write(random, extent.Extent{Offset: mib, Length: 1000}, false)
	disk.changed = disk.changed.Union(extent.NewSet(extent.Extent{Offset: 2 * mib, Length: 1}))
	disk.write(random, extent.Extent{Offset: 64 * mib, Length: 256 * kib}, true)
	incremental := disk.source(true)
	_, all = told(t, r, Request{Disks: []DiskSource{incremental}, Time: time.Unix(3, 0)})
	wantProgress(t, all[len(all)-1], Progress{TotalBytes: total, ScannedBytes: total, PlannedBytes: blocks(3), ReadBytes: blocks(3), ChangedBytes: blocks(2), DeduplicatedBytes: blocks(1)})

	// A disk that grew is read from its last block on. Changes that cannot be used make the plan larger once that is known.
	disk.data = append(disk.data, make([]byte, mib)...)
	total = int64(len(disk.data))
	_, all = told(t, r, Request{Disks: []DiskSource{disk.source(true)}, Time: time.Unix(4, 0)})
	wantProgress(t, all[len(all)-1], Progress{TotalBytes: total, ScannedBytes: total, PlannedBytes: mib + 77, ReadBytes: mib + 77})
	useless := disk.source(true)
	useless.Changes.Since = "another point"
	point, all := told(t, r, Request{Disks: []DiskSource{useless}, Time: time.Unix(5, 0)})
	if point.Disks[0].FullReason != FullOtherBase || all[0].PlannedBytes != 0 || all[len(all)-1].ReadBytes != total {
		t.Errorf("%s: %+v to %+v", point.Disks[0].FullReason, all[0], all[len(all)-1])
	}
}

// A callback may use the repository, and a slow one does not hold up the workers: no lock is held while it runs.
func TestProgress_isReportedWithoutALock(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk := &memory{data: make([]byte, 16*mib)}
	disk.write(rand.New(rand.NewPCG(7, 8)), extent.Extent{Length: 16 * mib}, false)
	source := disk.source(false)
	everything := &countingReader{Reader: source.Reader, wanted: 16 * mib, done: make(chan struct{})}
	source.Reader = everything
	reports, waited := 0, false
	q := Request{Source: testSource, Disks: []DiskSource{source}, Time: time.Unix(1, 0), Workers: 2}
	q.Progress = func(p Progress) {
		reports++
		if _, err := r.List(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if p.ReadBytes == 0 || waited {
			return
		}
		waited = true
		select {
		case <-everything.done: // The workers have read the rest meanwhile.
		case <-time.After(time.Minute):
			t.Error("nothing is read while the callback runs")
		}
	}
	if _, err := r.Backup(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if reports < 2 || !waited {
		t.Errorf("%d reports", reports)
	}
}

// countingReader closes done when so many bytes were read.
type countingReader struct {
	Reader
	wanted int64
	read   atomic.Int64
	done   chan struct{}
}

func (c *countingReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	err := c.Reader.ReadAt(ctx, p, offset)
	if c.read.Add(int64(len(p))) == c.wanted {
		close(c.done)
	}
	return err
}

// A disk that has to be read again is counted once.
func TestProgressOfASecondAttempt(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk, parent := twoRegions(t, r)
	image, err := r.Image(t.Context(), parent.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	table, err := image.ReadRegion(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := table[0].Object.ContentID()
	deleteContent(t, r, id)
	total := int64(len(disk.data))
	point, all := told(t, r, Request{Disks: []DiskSource{disk.source(true)}, Time: time.Unix(2, 0)})
	last := all[len(all)-1]
	if all[0].Plans != 0 || last.Plans != 2 {
		t.Errorf("%d plans in the beginning, %d in the end", all[0].Plans, last.Plans)
	}
	if point.Disks[0].FullReason != FullParentDamaged || last.ScannedBytes != total || last.ReadBytes != total || last.PlannedBytes != total {
		t.Errorf("%s: %+v", point.Disks[0].FullReason, last)
	}
	if all[0].PlannedBytes != 256*kib || !slices.ContainsFunc(all[1:], func(p Progress) bool { return p.ScannedBytes == 0 }) {
		t.Errorf("%+v", all)
	}
}

// deleteContent marks a content as deleted, as garbage collection does.
func deleteContent(t *testing.T, r *Repository, id content.ID) {
	t.Helper()
	ctx, w, err := r.conn.Kopia.NewDirectWriter(t.Context(), repo.WriteSessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.ContentManager().DeleteContent(ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
