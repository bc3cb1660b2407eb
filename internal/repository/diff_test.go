package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// differing returns what Diff must return, determined from the bytes.
func differing(a, b []byte, block int64) extent.Set {
	if len(a) > len(b) {
		a, b = b, a
	}
	var out extent.Set
	for at := int64(0); at < int64(len(a)); at += block {
		end := min(at+block, int64(len(a)))
		if !bytes.Equal(a[at:end], b[at:end]) {
			out.Append(extent.Extent{Offset: at, Length: end - at})
		}
	}
	out.Append(extent.Extent{Offset: int64(len(a)), Length: int64(len(b) - len(a))})
	return out
}

func TestDiff_isWhatDiffers(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	var sources atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{
			r: r, source: testSource, want: map[string][]byte{}, definitions: map[string]string{},
			block: 256 * kib,
		}
		m.source.Path = fmt.Sprintf("/diff-%d", sources.Add(1))
		m.disk.data = make([]byte, rapid.Int64Range(1, 4*m.block).Draw(rt, "bytes"))
		m.random = rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		for range rapid.IntRange(2, 3).Draw(rt, "restore points") {
			for range rapid.IntRange(0, 2).Draw(rt, "writes") {
				m.write(rt)
			}
			if rapid.Bool().Draw(rt, "resized") {
				m.resize(rt)
			}
			m.backUp(rt)
		}
		points, err := r.List(context.Background(), &m.source)
		if err != nil {
			rt.Fatal(err)
		}
		for _, a := range points {
			for _, b := range points {
				got, err := r.Diff(context.Background(), a.Disks[0], b.Disks[0])
				if err != nil {
					rt.Fatal(err)
				}
				if want := differing(m.want[a.ID], m.want[b.ID], m.block); fmt.Sprint(got) != fmt.Sprint(want) {
					verdict.Fatalf(rt, "%v, want %v", got, want)
				}
			}
		}
	})
}

// A change far away from others costs one extent, whatever regions lie between.
func TestDiff_acrossRegions(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk := &memory{data: make([]byte, 140*mib+5)}
	random := rand.New(rand.NewPCG(3, 4))
	backUp := func(at int64) Disk {
		p, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(at, 0), Disks: []DiskSource{disk.source(at > 1)}})
		if err != nil {
			t.Fatal(err)
		}
		return p.Disks[0]
	}
	before := backUp(1)
	disk.write(random, extent.Extent{Offset: 5, Length: 1}, false)
	disk.write(random, extent.Extent{Offset: 64*mib - 1, Length: 2}, false)
	disk.write(random, extent.Extent{Offset: 140 * mib, Length: 5}, false)
	after := backUp(2)
	got, err := r.Diff(t.Context(), before, after)
	want := extent.NewSet(
		extent.Extent{Length: 256 * kib}, extent.Extent{Offset: 64*mib - 256*kib, Length: 512 * kib}, extent.Extent{Offset: 140 * mib, Length: 5},
	)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		verdict.Errorf(t, "%v, want %v: %v", got, want, err)
	}
}

func TestDiff_refusesOtherBlocks(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	_, err := r.Diff(t.Context(), Disk{Name: "a", Bytes: mib, BlockBytes: mib}, Disk{Name: "b", Bytes: mib, BlockBytes: 256 * kib})
	if !errors.Is(err, errclass.Invalid) {
		t.Error(err)
	}
}
