package repository

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/repository/table"
)

// sessionWork records what a session has finished. It holds finished regions, and single blocks only of regions in progress. It
// is safe for concurrent use.
type sessionWork struct {
	mu    sync.Mutex
	disks []*diskWork
	// since is when the oldest content was looked up or stored that no session manifest names yet, or zero if there is none.
	since time.Time
	// now, if not nil, is the clock of a session that looks up and stores contents all the time, without noting each.
	now func() time.Time
}

// diskWork is what is finished of one disk. Regions that were taken over from the parent are not part of it.
type diskWork struct {
	geometry table.Geometry
	// regions are in the order in which they were finished, so that their table only grows at its end. Each starts at its offset
	// in the disk. A session manifest named the first confirmed of them in time.
	regions   []object.IndirectObjectEntry
	confirmed int
	// atWork holds the finished blocks of regions in progress.
	atWork map[int][]object.IndirectObjectEntry
	// list is the table of all regions, once there is one.
	list *object.IndirectObjectEntry
	// broken holds the regions of which something is gone, and brokenList says whether something of the list is. They have to be
	// stored again.
	broken     map[int]bool
	brokenList bool
}

// addDisk notes that work on a disk begins.
func (w *sessionWork) addDisk(g table.Geometry) *diskWork {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := &diskWork{geometry: g, atWork: map[int][]object.IndirectObjectEntry{}, broken: map[int]bool{}}
	w.disks = append(w.disks, d)
	return d
}

func (w *sessionWork) noteSince(since time.Time) {
	if w.since.IsZero() || since.Before(w.since) {
		w.since = since
	}
}

// addBlock notes that a block of region i is stored. Storing it began at since.
func (w *sessionWork) addBlock(d *diskWork, i int, e object.IndirectObjectEntry, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d.atWork[i] = append(d.atWork[i], e)
	w.noteSince(since)
}

// addRegion notes that a region is finished. Storing its table began at since.
func (w *sessionWork) addRegion(d *diskWork, e object.IndirectObjectEntry, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, _ := d.geometry.Locate(e.Start)
	delete(d.atWork, i)
	if d.broken[i] {
		return // No manifest may name what is gone.
	}
	d.regions = append(d.regions, e)
	w.noteSince(since)
}

// setList notes the table of all regions of a disk. Storing it began at since.
func (w *sessionWork) setList(d *diskWork, id object.ID, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(d.broken) > 0 {
		return
	}
	d.list = &object.IndirectObjectEntry{Length: d.geometry.Bytes, Object: id}
	w.noteSince(since)
}

// finishedWork is what was finished at one moment.
type finishedWork struct {
	disks []finishedDisk
	since time.Time
}

type finishedDisk struct {
	work    *diskWork
	regions []object.IndirectObjectEntry
	blocks  map[int][]object.IndirectObjectEntry
	list    *object.IndirectObjectEntry
	// confirmed is how many of the regions an earlier session manifest named in time.
	confirmed int
}

// collectFinished returns what is finished, for a session manifest that is about to name it. The caller reports the outcome with
// confirmNamed or uncollectFinished.
func (w *sessionWork) collectFinished() finishedWork {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := finishedWork{since: w.since}
	w.since = time.Time{}
	if w.now != nil {
		w.since = w.now()
	}
	for _, d := range w.disks {
		f.disks = append(f.disks, finishedDisk{
			work: d, regions: d.regions[:len(d.regions):len(d.regions)], blocks: maps.Clone(d.atWork), list: d.list, confirmed: d.confirmed,
		})
	}
	return f
}

// uncollectFinished notes that no session manifest names f.
func (w *sessionWork) uncollectFinished(f finishedWork) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !f.since.IsZero() {
		w.noteSince(f.since)
	}
}

// confirmNamed notes that a session manifest names f, and that all of f existed by then.
func (w *sessionWork) confirmNamed(f finishedWork) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range f.disks {
		// Both lists have the same order. Some regions of d may be gone from the current one, and newer regions are at its end.
		named := 0
		for _, e := range d.regions {
			if named < len(d.work.regions) && d.work.regions[named] == e {
				named++
			}
		}
		d.work.confirmed = named
	}
}

// breakRegion notes that something of region i is gone.
func (w *sessionWork) breakRegion(d *diskWork, i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d.broken[i] = true
	d.list, d.brokenList = nil, true
	delete(d.atWork, i)
	d.regions = slices.DeleteFunc(slices.Clone(d.regions), func(e object.IndirectObjectEntry) bool {
		at, _ := d.geometry.Locate(e.Start)
		return at == i
	})
	d.confirmed = min(d.confirmed, len(d.regions))
}

// breakList notes that something of the table of all regions is gone.
func (w *sessionWork) breakList(d *diskWork) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d.list, d.brokenList = nil, true
}

// isBroken says whether something of a disk has to be stored again.
func (w *sessionWork) isBroken(d *diskWork) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return d.brokenList
}

// takeBroken returns what has to be stored again of a disk, and no longer counts it as broken.
func (w *sessionWork) takeBroken(d *diskWork) (regions []int, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	regions, any = slices.Sorted(maps.Keys(d.broken)), d.brokenList
	clear(d.broken)
	d.brokenList = false
	return regions, any
}

// isEmpty says whether nothing is finished that is worth finding again.
func (w *sessionWork) isEmpty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.disks, func(d *diskWork) bool { return len(d.regions) > 0 || len(d.atWork) > 0 || d.list != nil })
}

// doubtAll makes everything be checked again that session manifests have named, because those manifests are gone.
func (w *sessionWork) doubtAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.disks {
		d.confirmed = 0
	}
	w.since = time.Unix(0, 0)
}

// storeTables stores the tables of what is finished of disk i, as files that kopia can read.
func (d *finishedDisk) storeTables(ctx context.Context, w repo.RepositoryWriter, i int) ([]*snapshot.DirEntry, error) {
	var out []*snapshot.DirEntry
	file := func(name string, bytes int64, id object.ID) {
		out = append(out, &snapshot.DirEntry{
			Name: fmt.Sprintf("%03d-%s", i, name), Type: snapshot.EntryTypeFile, Permissions: 0o600, FileSize: bytes, ObjectID: id,
		})
	}
	for _, t := range []struct {
		name    string
		entries []object.IndirectObjectEntry
	}{{"blocks", slices.Concat(slices.Collect(maps.Values(d.blocks))...)}, {"regions", slices.Clone(d.regions)}} {
		if len(t.entries) == 0 {
			continue
		}
		var bytes int64
		for j := range t.entries {
			t.entries[j].Start = bytes
			bytes += t.entries[j].Length
		}
		id, _, err := table.WriteList(ctx, w, t.entries)
		if err != nil {
			return nil, err
		}
		file(t.name, bytes, id)
	}
	if d.list != nil {
		file("disk", d.list.Length, d.list.Object)
	}
	return out, nil
}
