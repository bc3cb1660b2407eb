package repository

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/extent"
)

// damagedContent spoils the content of an object, and returns its blob's name.
func damagedContent(t *testing.T, r *Repository, config string, id object.ID, spoil func(data []byte, i content.Info) []byte) string {
	t.Helper()
	cid, _, ok := id.ContentID()
	if !ok {
		t.Fatalf("%s is no content", id)
	}
	info, err := r.reader().ContentInfo(t.Context(), cid)
	if err != nil {
		t.Fatal(err)
	}
	f := blobFiles(t, config, string(info.PackBlobID))[0]
	data, err := os.ReadFile(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f, spoil(data, info), 0o600); err != nil {
		t.Fatal(err)
	}
	return string(info.PackBlobID)
}

func flip(data []byte, i content.Info) []byte {
	data[i.PackOffset+i.PackedLength/2] ^= 1
	return data
}

// found are what Verify has found, as text.
func found(t *testing.T, r *Repository, percent float64) (out []string) {
	t.Helper()
	report, err := r.Verify(t.Context(), VerifyOptions{Percent: percent})
	if err != nil || report.Unlisted != nil || len(report.Points) != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, d := range report.Damage {
		if !errors.Is(d.Err, ErrCorrupt) || strings.Contains(d.Err.Error(), "corrupt") {
			t.Errorf("%v", d.Err)
		}
		out = append(out, d.Extent.String()+" "+d.Err.Error())
	}
	return out
}

func wantFound(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("found:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Damage names the blocks that it touches, those side by side together, and a region only if its table is gone.
func TestDamageNamesItsBlocks(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	random := rand.New(rand.NewPCG(9, 9))
	// Three regions, and a short block at the end. Blocks 2, 3 and 5 of the first are to be damaged, the last of the second, the first of the third.
	disk := &memory{data: make([]byte, 128*mib+256*kib+5)}
	for _, e := range []extent.Extent{{Offset: 0, Length: 2 * mib}, {Offset: 127 * mib, Length: mib + 256*kib + 5}} {
		disk.write(random, e, false)
	}
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	var first, last string
	for _, at := range [][2]int{{0, 5}, {0, 3}, {0, 2}, {1, 255}, {2, 0}, {2, 1}} {
		table, err := image.blocks(t.Context(), at[0])
		if err != nil {
			t.Fatal(err)
		}
		last = damagedContent(t, r, config, table[at[1]].Object, flip)
		if at[0] == 0 {
			first = last
		}
	}
	fresh := open(t, config)
	wantFound(t, found(t, fresh, 0)) // It takes reading to see it.
	wantFound(t, found(t, fresh, 100),
		"524288+524288 blob "+first+" has other bytes than were written",
		"1310720+262144 blob "+first+" has other bytes than were written",
		"133955584+524293 blob "+last+" has other bytes than were written")

	// The table of the second region is gone with its neighbours' blocks damaged: it is a part of its own.
	damagedTable := damagedContent(t, r, config, inner(t, image.list[1].Object), flip)
	wantFound(t, found(t, open(t, config), 100),
		"524288+524288 blob "+first+" has other bytes than were written",
		"1310720+262144 blob "+first+" has other bytes than were written",
		"67108864+67108864 the table of blocks: blob "+damagedTable+" has other bytes than were written",
		"134217728+262149 blob "+last+" has other bytes than were written")
}

func inner(t *testing.T, id object.ID) object.ID {
	t.Helper()
	out, ok := id.IndexObjectID()
	if !ok {
		t.Fatalf("%s is no table", id)
	}
	return out
}

// What is cut off or gone is seen without reading, and told by the same words.
func TestDamageOfABlob(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk := &memory{data: make([]byte, 3*mib)}
	disk.write(rand.New(rand.NewPCG(9, 10)), extent.Extent{Offset: mib, Length: 2 * mib}, false)
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	table, err := image.blocks(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	pack := damagedContent(t, r, config, table[4].Object, func([]byte, content.Info) []byte { return nil })
	for _, percent := range []float64{0, 100} {
		// The block of zeroes was in it, too: the upstream kopia cannot restore the hole.
		wantFound(t, found(t, open(t, config), percent), "0+3145728 blob "+pack+" is missing or too short")
	}
}

// Packs that maintenance rewrites meanwhile are no damage.
func TestVerifyWhileMaintenanceMovesThings(t *testing.T) {
	t.Parallel()
	_, config := newRepository(t)
	for i, path := range []string{"/a", "/b", "/c"} {
		// Each has its own small packs, which maintenance puts together.
		r := open(t, config)
		disk := &memory{data: make([]byte, mib)}
		disk.write(rand.New(rand.NewPCG(9, uint64(i))), extent.Extent{Length: mib}, false)
		source := testSource
		source.Path = path
		if _, err := r.Backup(t.Context(), Request{Source: source, Time: time.Unix(int64(i+1), 0), Disks: []DiskSource{disk.source(false)}}); err != nil {
			t.Fatal(err)
		}
	}
	before := blobFiles(t, config, "p")
	other := open(t, config)
	maintained := false
	report, err := open(t, config).Verify(t.Context(), VerifyOptions{Looked: func(int64, int64) {
		if maintained {
			return
		}
		maintained = true // after the first restore point
		for range 2 {
			if err := other.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
				t.Error(err)
			}
		}
	}})
	if err != nil || report.Damaged() {
		t.Errorf("%+v, %v", report, err)
	}
	if slices.Equal(before, blobFiles(t, config, "p")) {
		t.Error("maintenance has moved nothing")
	}
}

// No content is read or even looked at for nothing.
func TestCheckingReadsNothing(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	_, point := twoRegions(t, r)
	var looked, of int64
	report, err := r.Verify(t.Context(), VerifyOptions{
		Progress: func(int64, int64) { t.Error("something was read") },
		Looked:   func(n, all int64) { looked, of = n, all },
	})
	if err != nil || report.Contents != 0 || len(report.Points) != 1 || report.Points[0].ID != point.ID {
		t.Errorf("%+v, %v", report, err)
	}
	if looked != 65*mib || of != 65*mib {
		t.Errorf("looked at %d of %d bytes", looked, of)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Verify(ctx, VerifyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
