package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// packsOf returns the packs that hold the blocks or tables of a restore point, as the index names them now: with those whose names begin with kind.
func packsOf(tb testing.TB, r *Repository, p *RestorePoint, kind string) (out []blob.ID) {
	tb.Helper()
	found := map[blob.ID]bool{}
	note := func(id content.ID) {
		info, err := r.conn.Reader().ContentInfo(tb.Context(), id)
		if err != nil {
			tb.Fatal(err)
		}
		if strings.HasPrefix(string(info.PackBlobID), kind) {
			found[info.PackBlobID] = true
		}
	}
	img, err := r.Image(tb.Context(), p.Disks[0])
	if err != nil {
		tb.Fatal(err)
	}
	for i, e := range img.List {
		entries, err := img.ReadRegion(tb.Context(), i)
		if err != nil {
			tb.Fatal(err)
		}
		inner, _ := e.Object.IndexObjectID()
		id, _, _ := inner.ContentID()
		note(id)
		for _, b := range entries {
			id, _, _ := b.Object.ContentID()
			note(id)
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// lose removes blobs.
func (m *memoryBlobs) lose(ids ...blob.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		delete(m.blobs, id)
	}
}

// shorten cuts off the last byte of a blob's first half, and what follows.
func (m *memoryBlobs) shorten(id blob.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.blobs[id]
	b.data = b.data[:len(b.data)/2]
	m.blobs[id] = b
}

// rot flips one bit in every 16 bytes of a blob.
func (m *memoryBlobs) rot(id blob.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.blobs[id]
	b.data = bytes.Clone(b.data)
	for i := 0; i < len(b.data); i += 16 {
		b.data[i] ^= 1
	}
	m.blobs[id] = b
}

// flip flips one bit of a blob.
func (m *memoryBlobs) flip(id blob.ID, at int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.blobs[id]
	b.data = bytes.Clone(b.data)
	b.data[at] ^= 1
	m.blobs[id] = b
}

// named returns the names of the blobs that begin with prefix.
func (m *memoryBlobs) named(prefix string) (out []blob.ID) {
	for id := range m.now() {
		if strings.HasPrefix(string(id), prefix) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Whoever backs up next stores again what is lost of a pack, and mends every restore point that has it: a full backup, an incremental
// that changes nothing, and the first backup of another machine with the same data.
func TestLosses_areStoredAgain(t *testing.T) {
	t.Parallel()
	for _, harm := range []string{"lost", "short", "rotten"} {
		for _, kind := range []string{"p", "q"} {
			for _, how := range []string{"full", "incremental", "other machine"} {
				for _, cache := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s %s %s cache %v", harm, kind, how, cache), func(t *testing.T) {
						t.Parallel()
						testLoss(t, harm, kind, how, cache)
					})
				}
			}
		}
	}
}

func testLoss(t *testing.T, harm, kind, how string, cache bool) {
	t.Helper()
	s := newMemorySite(t)
	d := newBitmapDisk(5 * mib)
	d.add("c1")
	config := s.connect(t, "machine", cache)
	first := mustBackUp(t, s.opened(t, config), d.request("", "c1", 1))
	lost := packsOf(t, s.opened(t, config), first, kind)
	for _, id := range lost {
		switch harm {
		case "lost":
			s.memory.lose(id)
		case "short":
			s.memory.shorten(id)
		case "rotten":
			s.memory.rot(id)
		}
	}
	if harm == "rotten" {
		report, err := s.opened(t, s.connect(t, "verifier", !cached)).Verify(t.Context(), VerifyOptions{Percent: 100})
		if err != nil || !report.Damaged() || report.Unrecorded != nil {
			t.Fatalf("%+v, %v", report, err)
		}
		for _, id := range lost {
			if len(s.memory.named(storage.DamagedPrefix+string(id))) == 0 {
				t.Errorf("nothing says that %s is damaged", id)
			}
		}
	}
	if kind == "q" { // Manifests are in the same packs.
		if _, err := Repair(t.Context(), config, testPassword, false); err != nil {
			t.Fatal(err)
		}
	}
	var q Request
	switch how {
	case "full":
		q = d.request("", "c2", 2)
	case "incremental":
		q = d.request("c1", "c2", 2)
	case "other machine":
		config = s.connect(t, "other", cache)
		q = d.request("", "c2", 2)
		q.Source.Path = "/other"
	}
	p := mustBackUp(t, s.opened(t, config), q)
	fresh := s.opened(t, s.connect(t, "reader", !cached))
	same(t, fresh, p, d.data)
	for _, id := range packsOf(t, fresh, p, "") {
		if slices.Contains(lost, id) && harm != "short" {
			t.Errorf("the restore point has something in %s", id)
		}
	}
	report, err := fresh.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range report.Damage {
		if x.Point.ID == p.ID || kind == "p" {
			t.Errorf("%s of %s: %v", x.Extent, x.Point.ID, x.Err)
		}
	}
	// What was mended stays.
	s.move(80 * time.Hour)
	late := s.opened(t, s.connect(t, "late", !cached))
	if kind == "q" {
		if err := late.Delete(t.Context(), first.ID); err != nil { // Its description was lost, too.
			t.Fatal(err)
		}
	}
	if err := late.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Fatal(err)
	}
	same(t, late, p, d.data)
}

// An incremental reads again the unchanged blocks that are lost, and no others.
func TestLosses_incrementalReadsWhatIsLost(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	d := newBitmapDisk(8 * mib)
	r := s.opened(t, s.connect(t, "machine", cached))
	firstWeek(t, r, d)
	d.write(6, 6)
	d.add("thursday")
	thursday := mustBackUp(t, r, d.request("wednesday", "thursday", 4))
	lost := packsOf(t, r, thursday, "p")
	img, err := r.Image(t.Context(), thursday.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	entries, err := img.ReadRegion(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := entries[6].Object.ContentID()
	info, err := r.conn.Reader().ContentInfo(t.Context(), id)
	if err != nil || !slices.Contains(lost, info.PackBlobID) {
		t.Fatalf("block 6: %v, %v", info, err)
	}
	s.memory.lose(info.PackBlobID)
	d.add("friday")
	friday := mustBackUp(t, r, d.request("thursday", "friday", 5))
	if disk := friday.Disks[0]; disk.FullReason != "" || disk.Stats.ReadBytes != mib || disk.Stats.ChangedBytes != 0 {
		t.Errorf("%+v, want an incremental that reads one block", disk)
	}
	same(t, r, friday, d.data)
	same(t, r, thursday, d.data)
}

// A pack that is lost while a backup runs is noticed before the restore point is published, if that takes longer than a quarter of an
// hour: what the session has stored or found is stored again from the source.
func TestLosses_duringABackup(t *testing.T) {
	t.Parallel()
	for _, bitmap := range []string{"", "c1"} {
		t.Run("from "+bitmap, func(t *testing.T) {
			t.Parallel()
			s := newMemorySite(t)
			d := newBitmapDisk(5 * mib)
			d.add("c1")
			r := s.opened(t, s.connect(t, "machine", cached))
			first := mustBackUp(t, r, d.request("", "c1", 1))
			lost := packsOf(t, r, first, "p")
			d.write(2, 7)
			q := d.request(bitmap, "c2", 2)
			happened := false
			q.Disks[0].Reader = &lossyReader{bitmapDisk: d, once: func() {
				s.memory.lose(lost...)
				s.move(20 * time.Minute)
				happened = true
			}}
			p := mustBackUp(t, r, q)
			same(t, s.opened(t, s.connect(t, "reader", !cached)), p, d.data)
			if !happened {
				t.Error("nothing was lost")
			}
		})
	}
}

// lossyReader is a disk before whose first read something happens.
type lossyReader struct {
	*bitmapDisk
	first sync.Once
	once  func()
}

func (l *lossyReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	l.first.Do(l.once)
	return l.bitmapDisk.ReadAt(ctx, p, offset)
}

// Exclusive maintenance moves contents to other packs and deletes the old ones. That is no loss, for a connection that does not know
// of it either.
func TestLosses_movedContentsAreNotLost(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	d := newBitmapDisk(6 * mib)
	r := s.opened(t, s.connect(t, "machine", cached))
	other := s.opened(t, s.connect(t, "other", !cached))
	points := firstWeek(t, r, d)
	before := s.memory.named("p")
	if err := other.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Fatal(err)
	}
	if left := s.memory.named("p"); slices.Equal(left, before) {
		t.Fatal("maintenance moved nothing")
	}
	stored := s.stored.Load()
	p := mustBackUp(t, r, d.request("wednesday", "thursday", 4))
	if disk := p.Disks[0]; disk.FullReason != "" || disk.Stats.ReadBytes != 0 {
		t.Errorf("%+v", disk)
	}
	if n := s.stored.Load() - stored; n > mib/2 {
		t.Errorf("%d bytes were stored", n)
	}
	same(t, r, p, d.data)
	same(t, r, points[0], append(bytes.Repeat([]byte{1}, mib), newBitmapDisk(6 * mib).data[mib:]...))
}

// A verdict that a pack is damaged costs that its contents are stored once more, and goes with the pack.
func TestLosses_recordGoesWithThePack(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	d := newBitmapDisk(3 * mib)
	r := s.opened(t, s.connect(t, "machine", !cached))
	first := mustBackUp(t, r, d.request("", "c1", 1))
	for _, id := range packsOf(t, r, first, "p") {
		s.memory.rot(id)
	}
	if report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100}); err != nil || report.Unrecorded != nil {
		t.Fatal(report, err)
	}
	if len(s.memory.named(storage.DamagedPrefix)) != 1 {
		t.Fatalf("records: %v", s.memory.named(storage.DamagedPrefix))
	}
	second := mustBackUp(t, r, d.request("", "c2", 2))
	for range 2 {
		s.move(25 * time.Hour)
		if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
			t.Fatal(err)
		}
	}
	if left := s.memory.named(storage.DamagedPrefix); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	same(t, r, first, d.data)
	same(t, r, second, d.data)
}

// A storage that does not list its blobs is no storage without blobs, and one that cannot say whether a blob is there does not say that it
// is gone.
func TestLosses_aFailureIsNoLoss(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	d := newBitmapDisk(3 * mib)
	config := s.connect(t, "machine", !cached)
	first := mustBackUp(t, s.opened(t, config), d.request("", "c1", 1))
	failure := errors.New("the storage does not answer")
	for _, request := range []string{"LIST", "HEAD"} {
		var failed atomic.Bool
		fail := func(name blob.ID) error {
			if request == "LIST" && name == "" || request == "HEAD" && strings.HasPrefix(string(name), "p") {
				failed.Store(true)
				return failure
			}
			return nil
		}
		if request == "HEAD" {
			s.memory.lose(packsOf(t, s.opened(t, config), first, "p")...)
		}
		r := s.opened(t, config)
		s.unlisted.Store(&fail)
		stored := s.stored.Load()
		_, err := r.Backup(t.Context(), d.request("", "c2 "+request, 2))
		s.unlisted.Store(nil)
		if !errors.Is(err, failure) || errors.Is(err, errclass.Corrupt) || !failed.Load() {
			t.Errorf("%s: %v, want the storage's error", request, err)
		}
		if n := s.stored.Load() - stored; n > mib {
			t.Errorf("%s: %d bytes were stored", request, n)
		}
	}
	same(t, s.opened(t, config), mustBackUp(t, s.opened(t, config), d.request("", "c3", 3)), d.data)
}

// What repair finds lost it names; a backup mends it; and if the index of that backup is lost as well, repair finds what the backup has
// stored.
func TestLosses_repair(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	d := newBitmapDisk(3 * mib)
	first := mustBackUp(t, r, d.request("", "c1", 1))
	lost := packsOf(t, r, first, "p")
	if len(lost) != 1 {
		t.Fatalf("packs: %v", lost)
	}
	st, err := (Location{Directory: blobsOf(config)}).Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.DeleteBlob(t.Context(), lost[0]); err != nil {
		t.Fatal(err)
	}
	repair := func() *RepairReport {
		t.Helper()
		report, err := Repair(t.Context(), config, testPassword, false)
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	if report := repair(); !report.Nothing() || !slices.Equal(report.Packs, []string{string(lost[0])}) {
		t.Errorf("%+v", report)
	}
	before, err := storage.ListBlobs(t.Context(), st, storage.IndexPrefix)
	if err != nil {
		t.Fatal(err)
	}
	second := mustBackUp(t, open(t, config), d.request("", "c2", 2))
	if report := repair(); !report.Nothing() || len(report.Packs) > 0 {
		t.Errorf("after a backup: %+v", report)
	}
	after, err := storage.ListBlobs(t.Context(), st, storage.IndexPrefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range after {
		if !slices.ContainsFunc(before, func(o blob.Metadata) bool { return o.BlobID == b.BlobID }) {
			if err := st.DeleteBlob(t.Context(), b.BlobID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if report := repair(); report.Contents == 0 || len(report.Packs) > 0 {
		t.Errorf("without the index of the backup: %+v", report)
	}
	fresh := open(t, config)
	same(t, fresh, first, d.data)
	same(t, fresh, second, d.data)
	if report := repair(); !report.Nothing() || len(report.Packs) > 0 {
		t.Errorf("again: %+v", report)
	}
	if err := st.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
