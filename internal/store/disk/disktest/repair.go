package disktest

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/store/disk"
)

// checkRepair reads and repairs an image that was marked as damaged, and has nothing wrong.
func checkRepair(t *testing.T, d Disk) {
	ctx := t.Context()
	data := Noise(16, mib+5)
	d.NewImage("i", "i", data)
	d.NewHead("h", "h", "i", 2*mib)
	none := func(_ context.Context, piece int, _, _ []byte) error {
		t.Errorf("piece %d is right, and was asked for", piece)
		return nil
	}
	wantClass(t, d.Repair(ctx, "none", "i", none), errclass.NotFound)
	wantClass(t, d.Repair(ctx, "i", "another", none), errclass.NotFound)
	wantClass(t, d.Repair(ctx, "h", "h", none), errclass.Invalid, "not an image")
	d.must(d.MarkDamaged(ctx, "i", "i", "a bit"))
	checkReadPiece(t, d, data)
	before := d.Find("i")
	d.must(d.Repair(ctx, "i", "i", none))
	before.State = disk.StateReady
	if diff := cmp.Diff(before, d.Find("i")); diff != "" {
		t.Errorf("the repaired image (-want +got):\n%s", diff)
	}
	wantBytes(t, "repaired image", d.Read("i"), data)
	d.NewHead("g", "g", "i", mib+5)
	wantBytes(t, "clone", d.Read("g"), data)
	wantClass(t, d.Delete(ctx, "i"), errclass.Conflict, `"g", "h"`)
}

// checkReadPiece reads the pieces of a damaged image "i", of which nothing is wrong, with a head "h".
func checkReadPiece(t *testing.T, d Disk, data []byte) {
	ctx := t.Context()
	whole, rest := make([]byte, mib), make([]byte, len(data)-mib)
	d.must(d.ReadPiece(ctx, "i", "i", 0, whole))
	d.must(d.ReadPiece(ctx, "i", "i", 1, rest))
	wantBytes(t, "pieces", slices.Concat(whole, rest), data)
	wantClass(t, d.ReadPiece(ctx, "none", "i", 0, whole), errclass.NotFound)
	wantClass(t, d.ReadPiece(ctx, "i", "another", 0, whole), errclass.NotFound)
	wantClass(t, d.ReadPiece(ctx, "h", "h", 0, whole), errclass.Invalid, "not an image")
	for piece, p := range map[int][]byte{-1: whole, 0: rest, 1: whole, 2: rest} {
		wantClass(t, d.ReadPiece(ctx, "i", "i", piece, p), errclass.Invalid, "no such piece")
	}
}

// checkPlace compares where an image and its clone are.
func checkPlace(t *testing.T, d Disk) {
	ctx := t.Context()
	data := Noise(17, 3*mib)
	clear(data[mib : 2*mib])
	d.NewHead("m", "m", "", 3*mib)
	d.Write("m", 0, data[:mib])
	d.Write("m", 2*mib, data[2*mib:])
	d.must(d.Snapshot(ctx, "m", "i", disk.Seal{UID: "i", Kind: disk.KindImage}))
	d.NewHead("h", "h", "i", 4*mib)
	d.Write("h", 8192, Noise(18, 4096))
	d.must(d.MarkDamaged(ctx, "i", "i", "a bit"))
	_, err := d.Place(ctx, "none", extent.Extent{Length: 1})
	wantClass(t, err, errclass.NotFound)
	for _, c := range []struct {
		within       extent.Extent
		bytes        int64
		sharesNoByte bool
	}{
		{extent.Extent{Length: 4 * mib}, 2 * mib, false},
		{extent.Extent{Offset: mib, Length: mib}, 0, false},
		{extent.Extent{Offset: mib - 4096, Length: 8192}, 4096, false},
		{extent.Extent{Offset: 8192, Length: 4096}, 4096, true},
	} {
		image, err := d.Place(ctx, "i", c.within)
		d.must(err)
		clone, err := d.Place(ctx, "h", c.within)
		d.must(err)
		if a, b := sumPlaced(image), sumPlaced(clone); a != c.bytes || b != c.bytes {
			t.Errorf("%s: %d and %d bytes, want %d", c.within, a, b, c.bytes)
		}
		for i := 0; c.sharesNoByte && i < min(len(image), len(clone)); i++ {
			if image[i].Physical == clone[i].Physical && image[i].Physical != disk.Unplaced {
				t.Errorf("%s: what was written is where the image is: %v, %v", c.within, image, clone)
			}
		}
	}
	image, err := d.Place(ctx, "i", extent.Extent{Offset: 2 * mib, Length: mib})
	d.must(err)
	clone, err := d.Place(ctx, "h", extent.Extent{Offset: 2 * mib, Length: mib})
	d.must(err)
	if diff := cmp.Diff(image, clone); diff != "" {
		t.Errorf("what was not written is somewhere else (-image +clone):\n%s", diff)
	}
}

func sumPlaced(all []disk.Placed) (sum int64) {
	for _, p := range all {
		sum += p.Length
	}
	return sum
}
