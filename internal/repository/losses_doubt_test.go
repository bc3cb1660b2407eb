package repository

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// Two machines find the same blocks lost, and one stores them again while the other is at it. Neither hides what the other has stored,
// whichever ends last, and whether or not the first to begin comes to an end.
func TestLosses_twoMachinesStoreTheSameAgain(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"both end": false, "one fails": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemorySite(t)
			d := newBitmapDisk(6 * mib)
			slow, quick := s.opened(t, s.connect(t, "slow", cached)), s.opened(t, s.connect(t, "quick", !cached))
			first := mustBackUp(t, slow, d.request("", "c1", 1))
			s.memory.lose(packsOf(t, slow, first, "p")...)
			var inBetween *RestorePoint
			q := d.request("", "c2", 2)
			q.Source.Path = "/slow"
			q.Workers = 1
			failure := errors.New("the disk cannot be read")
			q.Disks[0].Reader = &interruptedReader{bitmapDisk: d, at: 3 * mib, before: func() error {
				r := d.request("", "c3", 3)
				r.Source.Path = "/quick"
				inBetween = mustBackUp(t, quick, r)
				s.move(time.Minute)
				if fails {
					return failure
				}
				return nil
			}}
			p, err := slow.Backup(t.Context(), q)
			if fails != errors.Is(err, failure) || inBetween == nil {
				t.Fatalf("%v", err)
			}
			fresh := s.opened(t, s.connect(t, "reader", !cached))
			same(t, fresh, first, d.data)
			same(t, fresh, inBetween, d.data)
			if !fails {
				same(t, fresh, p, d.data)
			}
			noMarks(t, fresh)
		})
	}
}

// interruptedReader is a disk before whose first read of a place something happens, which may fail.
type interruptedReader struct {
	*bitmapDisk
	at     int64
	before func() error
	did    bool
}

func (r *interruptedReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if offset >= r.at && !r.did { // One worker reads.
		r.did = true
		if err := r.before(); err != nil {
			return err
		}
	}
	return r.bitmapDisk.ReadAt(ctx, p, offset)
}

// noMarks fails if the index marks a content as deleted that is no manifest.
func noMarks(t *testing.T, r *Repository) {
	t.Helper()
	err := r.conn.Kopia.ContentReader().IterateContents(t.Context(), content.IterateOptions{IncludeDeleted: true}, func(info content.Info) error {
		if info.Deleted && info.ContentID.Prefix() != "m" {
			t.Errorf("content %s in %s is marked as deleted", info.ContentID, info.PackBlobID)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// However often an index is stored while lost blocks are stored again, none has the mark of deletion without the block.
func TestLosses_noIndexHasTheMarkAlone(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	d := newBitmapDisk(24 * mib)
	r := s.opened(t, s.connect(t, "machine", !cached))
	first := mustBackUp(t, r, d.request("", "c1", 1))
	s.memory.lose(packsOf(t, r, first, "p")...)
	q := d.request("", "c2", 2)
	ticks, done := make(chan time.Time), make(chan struct{})
	q.ticks = ticks
	flushes := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case ticks <- s.now():
				n++
			case <-done:
				flushes <- n
				return
			}
		}
	}()
	observer := s.opened(t, s.connect(t, "observer", !cached))
	s.changed = func(op string, id blob.ID) {
		if op != "put" || !storage.IsIndex(id) {
			return
		}
		if err := observer.conn.Kopia.Refresh(t.Context()); err != nil {
			t.Error(err)
			return
		}
		noMarks(t, observer)
	}
	p := mustBackUp(t, r, q)
	close(done)
	n := <-flushes
	s.changed = nil
	same(t, s.opened(t, s.connect(t, "reader", !cached)), p, d.data)
	if n < 2 {
		t.Errorf("the index was stored %d times meanwhile", n)
	}
}

// A table of the parent that a backup itself finds damaged is stored again, although nobody has recorded the damage.
func TestLosses_aDamagedTableOfTheParentIsStoredAgain(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	d := newBitmapDisk(3 * mib)
	r := s.opened(t, s.connect(t, "machine", !cached))
	first := mustBackUp(t, r, d.request("", "c1", 1))
	img, err := r.Image(t.Context(), first.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	inner, _ := img.List[0].Object.IndexObjectID()
	id, _, _ := inner.ContentID()
	info, err := r.conn.Reader().ContentInfo(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	s.memory.flip(info.PackBlobID, int(info.PackOffset+info.PackedLength/2))
	d.bitmaps["c1"] = extent.NewSet(extent.Extent{Length: 1}) // It was written to, and holds the same.
	p := mustBackUp(t, s.opened(t, s.connect(t, "other", !cached)), d.request("c1", "c2", 2))
	if full := p.Disks[0].FullReason; full != FullParentDamaged {
		t.Errorf("full: %q", full)
	}
	fresh := s.opened(t, s.connect(t, "reader", !cached))
	same(t, fresh, p, d.data)
	same(t, fresh, first, d.data)
	if report, err := fresh.Verify(t.Context(), VerifyOptions{Percent: 100}); err != nil || report.Damaged() {
		t.Errorf("%+v, %v", report, err)
	}
}

// Who may only read cannot record damage, and says so.
func TestLosses_readOnlyRecordsNothing(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	d := newBitmapDisk(3 * mib)
	first := mustBackUp(t, r, d.request("", "c1", 1))
	st, err := (Location{Directory: blobsOf(config)}).Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	pack := packsOf(t, r, first, "p")[0]
	data, err := storage.ReadBlob(t.Context(), st, pack)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(data); i += 16 {
		data[i] ^= 1
	}
	if err := st.PutBlob(t.Context(), pack, storage.Bytes(data), blob.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	reader, err := OpenLocation(t.Context(), Location{Directory: blobsOf(config)}, testPassword, ConnectOptions{ReadOnly: true, Host: "reader", User: "varve"})
	if err != nil {
		t.Fatal(err)
	}
	report, err := reader.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err := errors.Join(err, reader.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if !report.Damaged() || report.Unrecorded == nil {
		t.Errorf("%+v", report)
	}
	packs, err := engine.ListPacks(t.Context(), st)
	if err != nil || packs.Damaged(pack) {
		t.Errorf("recorded: %v, %v", packs.Damaged(pack), err)
	}
	if report, err = r.Verify(t.Context(), VerifyOptions{Percent: 100}); err != nil || report.Unrecorded != nil {
		t.Errorf("%+v, %v", report, err)
	}
	if packs, err = engine.ListPacks(t.Context(), st); err != nil || !packs.Damaged(pack) {
		t.Errorf("recorded: %v, %v", packs.Damaged(pack), err)
	}
	if err := st.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
