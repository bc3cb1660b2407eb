package repository

import (
	"context"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/reporter"
	"github.com/varvebackup/varve/internal/repository/table"
)

// progressEvery is the shortest interval at which progress is reported. Tests report all of it: what they back up takes less time.
var progressEvery = 200 * time.Millisecond

// Progress is how far a backup is, over all its disks, in bytes.
type Progress struct {
	// TotalBytes is the sum of the disks' sizes. ScannedBytes of them are settled: read, known to be zero, or known to be as in
	// the parent.
	TotalBytes, ScannedBytes int64
	// PlannedBytes is what will be read of the disks, in whole blocks, as far as that is known yet: a disk that cannot follow its
	// parent increases it. ReadBytes of them were read.
	PlannedBytes, ReadBytes int64
	// Plans is how many plans were made: one for each disk that is begun, and another one if it has to be read as a whole after all,
	// which sets what was counted for the disk back. Until the first plan, PlannedBytes is a guess.
	Plans int
	// ChangedBytes are in blocks that the previous restore point does not have in the same place. The repository already had
	// DeduplicatedBytes of them, and nothing was uploaded for those. A block that occurs twice in one backup counts only if the
	// index had it by then.
	ChangedBytes, DeduplicatedBytes int64
	// UploadedBytes went to the storage: the new blocks and tables, compressed and encrypted. It does not include what is on its
	// way.
	UploadedBytes int64
}

// progress adds up what the workers have done. Workers hold locks when they report, and so does kopia, so the callback has a
// goroutine of its own.
type progress struct {
	reports *reporter.Reporter[Progress]

	mu   sync.Mutex
	sum  Progress
	last time.Time
	// disk is the disk in progress, before is the sum when work on it began, and planned holds what was planned for each disk.
	disk    *DiskSource
	before  Progress
	planned map[*DiskSource]int64
}

func newProgress(q *Request) *progress {
	p := &progress{reports: reporter.New(q.Progress), planned: map[*DiskSource]int64{}}
	for i := range q.Disks {
		d := &q.Disks[i]
		p.sum.TotalBytes += d.Bytes
		// Until there is a plan, assume the best case: the parent has the same size, and its changes can be used.
		plan := diskPlan{geometry: table.Geometry{Bytes: d.Bytes, BlockBytes: q.BlockBytes}, previous: &Disk{Bytes: d.Bytes}}
		if d.Changes == nil || q.Parent == ParentNone {
			plan.full = FullNoChanges
		}
		p.planned[d] = d.plannedBytes(plan)
		p.sum.PlannedBytes += p.planned[d]
	}
	return p
}

// plannedBytes returns how many bytes of the disk a plan reads: those in blocks that may have changed and may have data.
func (d *DiskSource) plannedBytes(plan diskPlan) int64 {
	g := plan.geometry
	wanted := extent.NewSet(extent.Extent{Length: g.Bytes})
	if plan.isIncremental() {
		wanted = d.Changes.Set.Widen(g.BlockBytes, g.Bytes)
		if both := min(g.Bytes, plan.previous.Bytes); both != max(g.Bytes, plan.previous.Bytes) {
			start := both / g.BlockBytes * g.BlockBytes // the block that was cut differently
			wanted = wanted.Union(extent.NewSet(extent.Extent{Offset: start, Length: g.Bytes - start}))
		}
	}
	if d.Data != nil {
		wanted = wanted.Intersect(d.Data.Widen(g.BlockBytes, g.Bytes))
	}
	return wanted.Bytes()
}

// beginDisk notes how a disk is about to be stored, and returns when that was reported. An earlier attempt at the same disk no longer
// counts, except for what it uploaded.
func (p *progress) beginDisk(ctx context.Context, d *DiskSource, plan diskPlan) {
	p.noteDisk(d, plan)
	p.reports.Flush(ctx)
}

func (p *progress) noteDisk(d *DiskSource, plan diskPlan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.disk == d {
		uploaded, planned, plans := p.sum.UploadedBytes, p.sum.PlannedBytes, p.sum.Plans
		p.sum = p.before
		p.sum.UploadedBytes, p.sum.PlannedBytes, p.sum.Plans = uploaded, planned, plans
	}
	p.sum.Plans++
	p.disk, p.before = d, p.sum
	n := d.plannedBytes(plan)
	p.sum.PlannedBytes += n - p.planned[d]
	p.planned[d] = n
	p.reports.Report(p.sum)
}

func (p *progress) addUploaded(n int64) { p.addDone(Progress{UploadedBytes: n}) }

// addDone adds d to the sum, and reports the sum if that is due.
func (p *progress) addDone(d Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum.ScannedBytes += d.ScannedBytes
	p.sum.ReadBytes += d.ReadBytes
	p.sum.ChangedBytes += d.ChangedBytes
	p.sum.DeduplicatedBytes += d.DeduplicatedBytes
	p.sum.UploadedBytes += d.UploadedBytes
	if now := time.Now(); now.Sub(p.last) >= progressEvery { //nolint:forbidigo // how often a terminal is drawn
		p.last = now
		p.reports.Report(p.sum)
	}
}

// reportEnd reports the sum once more.
func (p *progress) reportEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports.Report(p.sum)
}

// hadBlockBefore says whether the repository already had a block that was just stored. The session's own blocks become visible
// through the repository only when they are in an index; until then they are new.
func (s *session) hadBlockBefore(ctx context.Context, block object.ID) bool {
	id, _, ok := block.ContentID()
	if !ok {
		return false
	}
	info, err := s.r.conn.Kopia.ContentReader().ContentInfo(ctx, id)
	return err == nil && !info.Deleted && !s.w.Losses().Has(info)
}
