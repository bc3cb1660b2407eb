package repository

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// recordingReader notes what is read of a disk.
type recordingReader struct {
	Reader

	mu    sync.Mutex
	reads []extent.Extent
}

func (r *recordingReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	r.mu.Lock()
	r.reads = append(r.reads, extent.Extent{Offset: offset, Length: int64(len(p))})
	r.mu.Unlock()
	return r.Reader.ReadAt(ctx, p, offset)
}

// sorted returns the reads in the order of the disk.
func (r *recordingReader) sorted() []extent.Extent {
	slices.SortFunc(r.reads, func(a, b extent.Extent) int { return int(a.Offset - b.Offset) })
	return r.reads
}

// A backup reads adjacent blocks at once: 1 MiB, or a larger block.
func TestBackup_readsInRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bytes, block  int64
		data, changed []extent.Extent
		want          []extent.Extent
	}{
		"everything": {bytes: 3*mib + 100, want: []extent.Extent{{Offset: 0, Length: mib}, {Offset: mib, Length: mib}, {Offset: 2 * mib, Length: mib}, {Offset: 3 * mib, Length: 100}}},
		"two extents that meet": {
			bytes: 4 * mib, data: []extent.Extent{{Offset: mib, Length: 512 * kib}, {Offset: mib + 512*kib, Length: 512*kib + 1}},
			want: []extent.Extent{{Offset: mib, Length: mib}, {Offset: 2 * mib, Length: 256 * kib}},
		},
		"an extent across a run": {bytes: 4 * mib, data: []extent.Extent{{Offset: mib - 1, Length: 2}}, want: []extent.Extent{{Offset: 768 * kib, Length: 256 * kib}, {Offset: mib, Length: 256 * kib}}},
		"changes": {
			bytes: 4 * mib, changed: []extent.Extent{{Offset: 256 * kib, Length: 512 * kib}, {Offset: 2*mib + 768*kib, Length: 1}},
			want: []extent.Extent{{Offset: 256 * kib, Length: 512 * kib}, {Offset: 2*mib + 768*kib, Length: 256 * kib}},
		},
		"large blocks":           {bytes: 9 * mib, block: 4 * mib, want: []extent.Extent{{Offset: 0, Length: 4 * mib}, {Offset: 4 * mib, Length: 4 * mib}, {Offset: 8 * mib, Length: mib}}},
		"a disk of a few blocks": {bytes: 300 * kib, want: []extent.Extent{{Offset: 0, Length: 300 * kib}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := newRepository(t)
			disk := &memory{data: make([]byte, c.bytes)}
			disk.write(rand.New(rand.NewPCG(1, 2)), extent.Extent{Length: c.bytes}, false)
			if c.changed != nil {
				mustBackUp(t, r, Request{Source: testSource, Time: time.Unix(1, 0), BlockBytes: c.block, Disks: []DiskSource{disk.source(false)}})
				disk.changed = extent.NewSet(c.changed...)
			}
			source := disk.source(c.changed != nil)
			if c.changed != nil {
				source.Changes.Exclusive = true // so that nothing is compared with the parent
			}
			if c.data != nil {
				data := extent.NewSet(c.data...)
				source.Data = &data
			}
			reader := &recordingReader{Reader: source.Reader}
			source.Reader = reader
			p := mustBackUp(t, r, Request{Source: testSource, Time: time.Unix(2, 0), BlockBytes: c.block, Disks: []DiskSource{source}})
			if full := p.Disks[0].FullReason; (full == "") != (c.changed != nil) {
				t.Errorf("it is full: %q", full)
			}
			if diff := cmp.Diff(c.want, reader.sorted()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// recordingTarget notes how often it is written.
type recordingTarget struct {
	collect

	mu     sync.Mutex
	writes int
}

func (r *recordingTarget) WriteAt(ctx context.Context, p []byte, offset int64) error {
	r.mu.Lock()
	r.writes++
	r.mu.Unlock()
	return r.collect.WriteAt(ctx, p, offset)
}

// A restore writes adjacent blocks at once, although the packs have them in another order.
func TestRestore_writesInRuns(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk := &memory{data: make([]byte, 100*mib+1000)}
	random := rand.New(rand.NewPCG(3, 4))
	disk.write(random, extent.Extent{Length: 40 * mib}, false)
	disk.write(random, extent.Extent{Offset: 70*mib + 256*kib, Length: 256 * kib}, false) // alone in its run
	disk.write(random, extent.Extent{Offset: 100 * mib, Length: 1000}, false)
	p := mustBackUp(t, r, Request{Source: testSource, Time: time.Unix(1, 0), Disks: []DiskSource{disk.source(false)}, Workers: 8})
	image, err := r.Image(t.Context(), p.Disks[0])
	if err != nil {
		t.Fatal(err)
	}
	target := &recordingTarget{collect: collect{data: make([]byte, len(disk.data))}}
	if err := image.Restore(t.Context(), target, RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(target.data, disk.data) {
		verdict.Errorf(t, "it restored something else")
	}
	// 162 blocks in 42 runs. A run whose blocks lie far apart in the packs is written in parts.
	if target.writes > 60 {
		t.Errorf("%d writes", target.writes)
	}
}
