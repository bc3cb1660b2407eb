package repository

import (
	"os"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/content"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/table"
)

// A backup that had to read everything still says what changed.
func TestFullBackup_saysWhatChanged(t *testing.T) {
	t.Parallel()
	const block = 256 * kib
	r, _ := newRepository(t)
	disk, _ := twoRegions(t, r)
	clear(disk.data[mib : mib+1000]) // The first of its blocks with data differs from the restore point.
	full := func(data *extent.Set, size int) Stats {
		t.Helper()
		s := disk.source(false)
		s.Data, s.Bytes = data, int64(size)
		p, err := r.Backup(t.Context(), Request{Source: testSource, Disks: []DiskSource{s}})
		if err != nil {
			t.Fatal(err)
		}
		if p.Disks[0].FullReason != FullNoChanges {
			t.Fatalf("%+v", p.Disks[0])
		}
		image, err := r.Image(t.Context(), p.Disks[0])
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, size)
		if err := image.ReadAt(t.Context(), got, 0); err != nil {
			t.Fatal(err)
		}
		return p.Disks[0].Stats
	}
	if got := full(nil, len(disk.data)).ChangedBytes; got != block {
		t.Errorf("one block changed: %d bytes", got)
	}
	if got := full(nil, len(disk.data)).ChangedBytes; got != 0 {
		t.Errorf("nothing changed: %d bytes", got)
	}
	// The second region has become a hole, which is not read. Four of its blocks had data.
	var first extent.Set
	first.Append(extent.Extent{Length: 64 * mib})
	clear(disk.data[64*mib:])
	if got := full(&first, len(disk.data)); got.ChangedBytes != 4*block || got.ReadBytes != 64*mib {
		t.Errorf("a region became a hole: %+v", got)
	}
	if got := full(&first, len(disk.data)).ChangedBytes; got != 0 {
		t.Errorf("a hole as before: %d bytes", got)
	}
	// The disk has grown by zeroes.
	disk.data = append(disk.data, make([]byte, 64*mib)...)
	if got := full(nil, len(disk.data)).ChangedBytes; got != 0 {
		t.Errorf("grown: %d bytes", got)
	}
}

// What cannot be compared counts as changed, and does not make the backup fail.
func TestFullBackup_doesWithoutADamagedPredecessor(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk, parent := twoRegions(t, r)
	list, err := table.ReadList(t.Context(), r.conn.Reader(), table.Geometry{Bytes: parent.Disks[0].Bytes, BlockBytes: parent.Disks[0].BlockBytes}, parent.Disks[0].Object)
	if err != nil {
		t.Fatal(err)
	}
	inner, _ := list[0].Object.IndexObjectID()
	damageContent(t, r, config, inner.String())
	fresh := open(t, config)
	p, err := fresh.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	// The first region has data in three blocks, whether they changed or not. The second can be compared.
	if got := p.Disks[0].Stats.ChangedBytes; got != 3*256*kib {
		t.Errorf("%d bytes changed", got)
	}
	same(t, fresh, p, disk.data)
}

// damageContent flips a bit of one content in its pack.
func damageContent(tb testing.TB, r *Repository, config, id string) {
	tb.Helper()
	cid, err := content.ParseID(id)
	if err != nil {
		tb.Fatal(err)
	}
	info, err := r.conn.Kopia.ContentReader().ContentInfo(tb.Context(), cid)
	if err != nil {
		tb.Fatal(err)
	}
	name := blobFiles(tb, config, string(info.PackBlobID))[0]
	data, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	data[info.PackOffset+info.PackedLength/2] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		tb.Fatal(err)
	}
}
