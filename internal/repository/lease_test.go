package repository

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/maintenance"
	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/test/verdict"
)

// hooked calls a function before the first read.
type hooked struct {
	*memory
	once sync.Once
	call func()
}

func (h *hooked) ReadAt(ctx context.Context, p []byte, offset int64) error {
	h.once.Do(h.call)
	return h.memory.ReadAt(ctx, p, offset)
}

// twoRegions makes a disk with a restore point, and changes only its first region afterwards.
func twoRegions(t *testing.T, r *Repository) (*memory, *RestorePoint) {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	disk := &memory{data: make([]byte, 65*mib)}
	disk.write(random, extent.Extent{Offset: mib, Length: 600 * kib}, false)
	disk.write(random, extent.Extent{Offset: 64*mib + 5, Length: 900 * kib}, false)
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	disk.write(random, extent.Extent{Offset: mib, Length: 1000}, false)
	return disk, p
}

// The parent is deleted, and everything unreferenced is collected, while an incremental runs that clones from it.
func TestSession_keepsWhatItClones(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk, parent := twoRegions(t, r)
	other := open(t, config)
	next := disk.source(true)
	next.Reader = &hooked{memory: disk, call: func() {
		if err := other.Delete(t.Context(), parent.ID); err != nil {
			t.Error(err)
		}
		// Everything unreferenced goes from the indexes at once. Blobs stay for a day, as always when others may be working.
		atOnce := maintenance.SafetyNone
		atOnce.PackDeleteMinAge = 24 * time.Hour
		if err := other.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Safety: &atOnce}); err != nil {
			t.Error(err)
		}
	}}
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{next}})
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Disks[0]; d.FullReason != "" || d.Stats.ReadBytes != 256*kib || d.Parent != parent.ID {
		t.Errorf("%+v", d)
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Fatal(err)
	}
	same(t, open(t, config), p, disk.data)
	if ids, err := snapshot.ListSnapshotManifests(t.Context(), r.conn.Kopia, nil, map[string]string{engine.TagLease: "1"}); err != nil || len(ids) > 0 {
		t.Errorf("leases left: %v, %v", ids, err)
	}
}

// A parent whose tables have a flipped bit is read anew, as one whose tables are gone: nothing else ever makes it readable again.
func TestBackup_readsAParentWithAFlippedBitAnew(t *testing.T) {
	t.Parallel()
	for name, choose := range map[string]func(list object.ID, regions []object.IndirectObjectEntry) object.ID{
		"the list of regions":     func(list object.ID, _ []object.IndirectObjectEntry) object.ID { return list },
		"the region that changed": func(_ object.ID, regions []object.IndirectObjectEntry) object.ID { return regions[0].Object },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, config := newRepository(t)
			disk, parent := twoRegions(t, r)
			d := parent.Disks[0]
			list, err := table.ReadList(t.Context(), r.conn.Reader(), table.Geometry{Bytes: d.Bytes, BlockBytes: d.BlockBytes}, d.Object)
			if err != nil {
				t.Fatal(err)
			}
			inner, ok := choose(d.Object, list).IndexObjectID()
			if !ok {
				t.Fatal("it is no table")
			}
			damageContent(t, r, config, inner.String())
			fresh := open(t, config)
			source := disk.source(true)
			source.Changes.Exclusive = true // No sample finds it either.
			p, err := fresh.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{source}})
			if err != nil {
				t.Fatal(err)
			}
			if d := p.Disks[0]; d.FullReason != FullParentDamaged || d.Parent != "" {
				t.Errorf("%+v", d)
			}
			same(t, fresh, p, disk.data)
		})
	}
}

// A parent whose content is gone is noticed before anything is published.
func TestBackup_readsADamagedParentAnew(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk, parent := twoRegions(t, r)
	image, err := r.Image(t.Context(), parent.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	table, err := image.ReadRegion(t.Context(), 1) // the region that is cloned as a whole
	if err != nil {
		t.Fatal(err)
	}
	cid, _, _ := table[0].Object.ContentID()
	err = repo.DirectWriteSession(t.Context(), r.conn.Kopia, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		return w.ContentManager().DeleteContent(ctx, cid)
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(true)}})
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Disks[0]; d.FullReason != FullParentDamaged || d.Parent != "" {
		t.Errorf("%+v", d)
	}
	same(t, r, p, disk.data)
}

func TestMaintenance_isDoneByOneMachineOnly(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	other := open(t, config)
	_, held, err := r.conn.Lock(t.Context(), "maintenance")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Maintain(t.Context(), MaintenanceOptions{Mode: QuickMaintenance}); !errors.Is(err, errclass.Conflict) {
		t.Errorf("%v", err)
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	if err := other.Maintain(t.Context(), MaintenanceOptions{Mode: QuickMaintenance}); err != nil {
		t.Error(err)
	}
	if err := other.Maintain(t.Context(), MaintenanceOptions{Mode: "some"}); !errors.Is(err, errclass.Invalid) {
		t.Errorf("%v", err)
	}
}

// Of many that want the lock at once, at most one has it at any time.
func TestLock_excludesOthers(t *testing.T) {
	t.Parallel()
	_, config := newRepository(t)
	var mu sync.Mutex
	holders, most, had := 0, 0, 0
	machines := []*Repository{open(t, config), open(t, config), open(t, config)}
	var wait sync.WaitGroup
	for _, r := range machines {
		wait.Go(func() {
			for range 4 {
				_, l, err := r.conn.Lock(context.Background(), "test")
				if errors.Is(err, errclass.Conflict) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				holders++
				had++
				most = max(most, holders)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				holders--
				mu.Unlock()
				if err := l.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	if most > 1 {
		t.Errorf("%d held it at once", most)
	}
	if had == 0 {
		t.Error("nobody ever got it")
	}
}

// A source that fails leaves no restore point, and what was stored is used by the next backup.
func TestBackup_isInvisibleWhenItFails(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	random := rand.New(rand.NewPCG(3, 4))
	disk := &memory{data: make([]byte, 20*mib)}
	disk.write(random, extent.Extent{Length: 20 * mib}, false)
	broken := disk.source(false)
	broken.Reader = failing{disk, 15 * mib}
	var uploaded int64
	q := Request{Source: testSource, Workers: 1, Disks: []DiskSource{broken}, FlushEvery: 100 * time.Millisecond, Progress: func(p Progress) { uploaded = p.UploadedBytes }}
	if _, err := r.Backup(t.Context(), q); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	fresh := open(t, config)
	if points, err := fresh.List(t.Context(), nil); err != nil || len(points) > 0 {
		t.Fatalf("%v, %v", points, err)
	}
	uploaded = 0
	q.Disks = []DiskSource{disk.source(false)}
	p, err := fresh.Backup(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if uploaded > 8*mib {
		t.Errorf("%d bytes uploaded again", uploaded)
	}
	same(t, fresh, p, disk.data)
}

var errBroken = errors.New("no more")

// failing is a disk that cannot be read from an offset on.
type failing struct {
	*memory
	from int64
}

func (f failing) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if offset >= f.from {
		time.Sleep(time.Second) // a flush's time
		return errBroken
	}
	return f.memory.ReadAt(ctx, p, offset)
}

// collect is a Target in memory.
type collect struct {
	mu   sync.Mutex
	data []byte
	// synced says that Sync was called after the last write.
	synced bool
}

func (c *collect) WriteAt(_ context.Context, p []byte, offset int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	copy(c.data[offset:], p)
	c.synced = false
	return nil
}

func (c *collect) Zero(_ context.Context, e extent.Extent) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.data[e.Offset:e.End()])
	c.synced = false
	return nil
}

func (c *collect) Sync(context.Context) error { c.synced = true; return nil }

func TestRestore_writesEverything(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk, _ := twoRegions(t, r)
	p, err := r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{disk.source(true)}})
	if err != nil {
		t.Fatal(err)
	}
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	target := &collect{data: bytes.Repeat([]byte{0xaa}, len(disk.data))}
	var done sync.Map
	if err := image.Restore(t.Context(), target, RestoreOptions{Finished: func(region int, _ extent.Extent) { done.Store(region, true) }}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(target.data, disk.data) || !target.synced {
		verdict.Errorf(t, "the target differs, or was not synced")
	}
	target = &collect{data: bytes.Repeat([]byte{0xaa}, len(disk.data))}
	if err := image.Restore(t.Context(), target, RestoreOptions{Done: func(region int) bool { return region == 0 }}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(target.data[64*mib:], disk.data[64*mib:]) || target.data[0] != 0xaa {
		verdict.Errorf(t, "what was done was done again, or the rest was not")
	}
	data, err := image.Data(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := extent.NewSet(extent.Extent{Offset: mib, Length: 768 * kib}, extent.Extent{Offset: 64 * mib, Length: mib})
	if !data.Subtract(want).Empty() || !want.Subtract(data).Empty() {
		verdict.Errorf(t, "data %v", data)
	}
}
