package repository

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/table"
)

// A backup lists all blobs once, and looks for none of them, if nothing is lost: also one that maintenance and other machines have made
// packs beside.
func TestCost_aBackupListsThePacksOnce(t *testing.T) {
	t.Parallel()
	s := newMemorySite(t)
	d := newBitmapDisk(4 * mib)
	r := s.opened(t, s.connect(t, "machine", cached))
	firstWeek(t, r, d)
	for _, minutes := range []int{0, 20} {
		var lists atomic.Int64
		count := func(name blob.ID) error {
			if name == "" {
				lists.Add(1)
			}
			return nil
		}
		change := fmt.Sprintf("thursday %d", minutes)
		d.add(change)
		q := d.request("wednesday", change, 4+int64(minutes))
		q.Parent = ParentNone
		q.Disks[0].Reader = &lossyReader{bitmapDisk: d, once: func() { s.move(time.Duration(minutes) * time.Minute) }}
		s.unlisted.Store(&count)
		took := s.costOf(t, func() error {
			_, err := r.Backup(t.Context(), q)
			return err
		})
		s.unlisted.Store(nil)
		t.Logf("%d minutes: %s, %d lists of all blobs", minutes, took, lists.Load())
		if want := map[int]int64{0: 1, 20: 2}[minutes]; lists.Load() != want {
			t.Errorf("a backup of %d minutes has listed all blobs %d times, want %d", minutes, lists.Load(), want)
		}
		if took.heads > 0 {
			t.Errorf("%s, but nothing is lost", took)
		}
	}
}

// BenchmarkLosses compares the index with the packs as each backup does: 20,000 packs, which is 400 GB, and 200,000 contents. Run it
// with -benchtime 5x.
func BenchmarkLosses(b *testing.B) {
	const packs, contents = 20_000, 200_000
	r, config := newRepository(b)
	st, err := filesystem.New(b.Context(), &filesystem.Options{Path: blobsOf(config)}, false)
	if err != nil {
		b.Fatal(err)
	}
	for i := range packs {
		if err := st.PutBlob(b.Context(), blob.ID(fmt.Sprintf("p%032x-s0123456789abcdef147", uint64(i)*0x9e3779b97f4a7c15)), storage.Bytes("pack"), blob.PutOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	ctx, w, err := r.conn.Kopia.NewDirectWriter(b.Context(), repo.WriteSessionOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range contents {
		if _, err := table.WriteObject(ctx, w, binary.LittleEndian.AppendUint64(nil, uint64(i)), object.WriterOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Flush(ctx); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(ctx); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if l, err := r.conn.FindLosses(b.Context()); err != nil || l.Any() {
			b.Fatal(l.Packs(), err)
		}
	}
}
