package repository

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// damagedContent damages the content of an object with spoil, and returns its blob's name.
func damagedContent(t *testing.T, r *Repository, config string, id object.ID, spoil func(data []byte, i content.Info) []byte) string {
	t.Helper()
	cid, _, ok := id.ContentID()
	if !ok {
		t.Fatalf("%s is no content", id)
	}
	info, err := r.conn.Reader().ContentInfo(t.Context(), cid)
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

// found returns what Verify has found, as text.
func found(t *testing.T, r *Repository, percent float64) (out []string) {
	t.Helper()
	report, err := r.Verify(t.Context(), VerifyOptions{Percent: percent})
	if err != nil || report.Unlisted != nil || len(report.Points) != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, d := range report.Damage {
		if !errors.Is(d.Err, errclass.Corrupt) || strings.Contains(d.Err.Error(), "corrupt") {
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

// Damage names the blocks that it affects, adjacent ones together. It names a region only if its table is gone.
func TestDamageNamesItsBlocks(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	random := rand.New(rand.NewPCG(9, 9))
	// The disk has three regions, and a short block at the end. Blocks 2, 3 and 5 of the first region will be damaged, the last
	// one of the second, and the first one of the third.
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
		table, err := image.ReadRegion(t.Context(), at[0])
		if err != nil {
			t.Fatal(err)
		}
		last = damagedContent(t, r, config, table[at[1]].Object, flip)
		if at[0] == 0 {
			first = last
		}
	}
	fresh := open(t, config)
	wantFound(t, found(t, fresh, 0)) // Only reading shows it.
	wantFound(t, found(t, fresh, 100),
		"524288+524288 blob "+first+" has other bytes than were written",
		"1310720+262144 blob "+first+" has other bytes than were written",
		"133955584+524293 blob "+last+" has other bytes than were written")

	// The table of the second region is gone, and its neighbours' blocks are damaged. The region is a part of its own.
	damagedTable := damagedContent(t, r, config, inner(t, image.List[1].Object), flip)
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

// firstTable returns the table of the first region of a restore point's first disk.
func firstTable(t *testing.T, r *Repository, p *RestorePoint) []object.IndirectObjectEntry {
	t.Helper()
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	table, err := image.ReadRegion(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// What is cut off or gone is detected without reading, and reported in the same words.
func TestDamageOfABlob(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk := &memory{data: make([]byte, 3*mib)}
	disk.write(rand.New(rand.NewPCG(9, 10)), extent.Extent{Offset: mib, Length: 2 * mib}, false)
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	table := firstTable(t, r, p)
	pack := damagedContent(t, r, config, table[4].Object, func([]byte, content.Info) []byte { return nil })
	for _, percent := range []float64{0, 100} {
		// The block of zeroes was in it, too: the upstream kopia cannot restore the hole.
		wantFound(t, found(t, open(t, config), percent), "0+3145728 blob "+pack+" is missing or too short")
	}
}

// Four samples of a quarter that begin at each quarter are everything, once.
func TestSamplesMeetEverything(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk := &memory{data: make([]byte, 16*mib)}
	disk.write(rand.New(rand.NewPCG(3, 3)), extent.Extent{Length: 16 * mib}, false)
	p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}})
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := r.Contents(t.Context(), 100, 0)
	if err != nil {
		t.Fatal(err)
	}
	table := firstTable(t, r, p)
	damagedContent(t, r, config, table[5].Object, flip)
	fresh := open(t, config)
	var sum int64
	damage := 0
	first := rand.Uint64()
	for quarter := range uint64(4) {
		report, err := fresh.Verify(t.Context(), VerifyOptions{Percent: 25, Sample: first + quarter<<62})
		if err != nil {
			t.Fatal(err)
		}
		if report.Contents < 5 || report.Contents > all/2 {
			t.Errorf("25%% of %d contents are %d", all, report.Contents)
		}
		sum += report.Contents
		damage += len(report.Damage)
	}
	if sum != all || damage != 1 {
		t.Errorf("four quarters from %d on: %d of %d contents, damage %d times", first, sum, all, damage)
	}
}

// What maintenance moves just before it is read or looked for, even more than once, is not damage.
func TestVerifyWhileMaintenanceMovesThings(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	config := s.connect(t, "host", cached)
	at := func(do func(*Repository) error) {
		s.move(time.Second) // If a content has two places, the later one counts, by the second.
		r, err := s.open(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(do(r), r.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	// Each restore point has small packs of its own, which maintenance merges with all others.
	move := func() {
		n++
		at(func(r *Repository) error {
			disk := &memory{data: make([]byte, 129*mib), point: n}
			random := rand.New(rand.NewPCG(9, uint64(n)))
			for _, at := range []int64{0, 64 * mib, 128 * mib} {
				disk.write(random, extent.Extent{Offset: at, Length: 100 * kib}, false)
			}
			_, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(int64(n), 0), Disks: []DiskSource{disk.source(false)}})
			return err
		})
		for range 2 {
			at(func(r *Repository) error {
				return r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true})
			})
		}
	}
	move()
	move()
	for _, percent := range []float64{0, 100} {
		move()
		var looking, moving atomic.Bool
		moves := 0
		asked := map[blob.ID]bool{}
		var mu sync.Mutex
		hook := func(id blob.ID) {
			if !strings.HasPrefix(string(id), "p") || moving.Load() {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			// With a percentage, the moves happen during the reads; without, while the places are looked for.
			if asked[id] || moves == 3 || looking.Load() != (percent == 0) {
				return
			}
			asked[id] = true
			moves++
			moving.Store(true)
			move()
			moving.Store(false)
		}
		s.asked.Store(&hook)
		reader, err := s.open(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		first := true
		report, err := reader.Verify(t.Context(), VerifyOptions{Percent: percent, Workers: 2, Looked: func(int64, int64) {
			if first {
				first = false
				moving.Store(true)
				move()
				moving.Store(false)
				looking.Store(true)
			}
		}})
		s.asked.Store(nil)
		if err := errors.Join(err, reader.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		if report.Damaged() {
			verdict.Errorf(t, "%v %%: %+v", percent, report)
		}
		if moves < 2 {
			t.Errorf("%v %%: moved %d times", percent, moves)
		}
	}
}

// No content is read, or even looked up, unnecessarily.
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

// Callbacks of a verification may verify, and do not hold up its workers.
func TestVerify_reportsWithoutALock(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	twoRegions(t, r)
	calls := map[string]int{}
	again := func(what string) func(int64, int64) {
		return func(int64, int64) {
			if calls[what]++; calls[what] > 1 {
				return
			}
			if report, err := r.Verify(t.Context(), VerifyOptions{}); err != nil || report.Damaged() {
				verdict.JudgeErrorf(t, err == nil, "%s: %+v, %v", what, report, err)
			}
		}
	}
	report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100, Progress: again("read"), Looked: again("looked")})
	if err != nil || report.Damaged() || calls["read"] == 0 || calls["looked"] == 0 {
		verdict.JudgeErrorf(t, err == nil && report.Damaged(), "%+v, %v, %v", report, calls, err)
	}
}
