package repository

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/table"
	"github.com/varvebackup/varve/test/verdict"
)

// pageBytes is the size of a sparse disk's pages.
const pageBytes = 16 * kib

// sparse is a disk of any size in memory: its pages that are not all zero. Pages are never changed, only replaced, so that a
// clone copies no data. It is not safe for concurrent change.
type sparse struct {
	bytes int64
	pages map[int64]*[pageBytes]byte
}

func newSparse(bytes int64) *sparse {
	return &sparse{bytes: bytes, pages: map[int64]*[pageBytes]byte{}}
}

func (s *sparse) clone() *sparse { return &sparse{bytes: s.bytes, pages: maps.Clone(s.pages)} }

// ReadAt implements Reader.
func (s *sparse) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if offset < 0 || offset+int64(len(p)) > s.bytes {
		return fmt.Errorf("read %d+%d of a disk of %d bytes", offset, len(p), s.bytes)
	}
	for len(p) > 0 {
		in := offset % pageBytes
		n := min(int64(len(p)), pageBytes-in)
		if page := s.pages[offset/pageBytes]; page != nil {
			copy(p[:n], page[in:])
		} else {
			clear(p[:n])
		}
		p, offset = p[n:], offset+n
	}
	return ctx.Err()
}

// write puts data at offset. Bytes beyond the disk's end are dropped.
func (s *sparse) write(data []byte, offset int64) {
	for len(data) > 0 {
		in := offset % pageBytes
		n := min(int64(len(data)), pageBytes-in)
		var page [pageBytes]byte
		if was := s.pages[offset/pageBytes]; was != nil {
			page = *was
		}
		copy(page[in:], data[:n])
		s.put(offset/pageBytes, &page)
		data, offset = data[n:], offset+n
	}
}

func (s *sparse) put(i int64, page *[pageBytes]byte) {
	if table.IsZero(page[:]) {
		delete(s.pages, i)
		return
	}
	s.pages[i] = page
}

// zero discards e.
func (s *sparse) zero(e extent.Extent) {
	if int64(len(s.pages)) < e.Length/pageBytes {
		for i := range s.pages {
			s.zeroPage(i, e)
		}
		return
	}
	for i := e.Offset / pageBytes; i*pageBytes < e.End(); i++ {
		s.zeroPage(i, e)
	}
}

// zeroPage discards what of page i lies in e.
func (s *sparse) zeroPage(i int64, e extent.Extent) {
	in := extent.Extent{Offset: i * pageBytes, Length: pageBytes}.Intersect(e)
	if in.Empty() || s.pages[i] == nil {
		return
	}
	page := *s.pages[i]
	clear(page[in.Offset-i*pageBytes : in.End()-i*pageBytes])
	s.put(i, &page)
}

// resize cuts the end off, or adds zeroes.
func (s *sparse) resize(bytes int64) {
	s.zero(extent.Extent{Offset: bytes, Length: max(0, s.bytes-bytes)})
	s.bytes = bytes
}

// set returns the set of these pages, as far as the disk reaches.
func (s *sparse) set(pages []int64) extent.Set {
	var out extent.Set
	for _, i := range slices.Sorted(slices.Values(pages)) {
		if e := (extent.Extent{Offset: i * pageBytes, Length: pageBytes}).Intersect(extent.Extent{Length: s.bytes}); !e.Empty() {
			out.Append(e)
		}
	}
	return out
}

// data returns the pages with anything in them.
func (s *sparse) data() extent.Set { return s.set(slices.Collect(maps.Keys(s.pages))) }

// changed returns the pages of s in which it differs from an earlier state of the disk.
func (s *sparse) changed(since *sparse) extent.Set {
	var out []int64
	for i, page := range s.pages {
		if was := since.pages[i]; was != page && (was == nil || *was != *page) {
			out = append(out, i)
		}
	}
	for i := range since.pages {
		if s.pages[i] == nil {
			out = append(out, i)
		}
	}
	return s.set(out)
}

// digest returns a name for the content.
func (s *sparse) digest() string {
	h := sha256.New()
	number := func(n int64) { _, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n))) }
	number(s.bytes)
	for _, i := range slices.Sorted(maps.Keys(s.pages)) {
		number(i)
		_, _ = h.Write(s.pages[i][:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// save writes the disk to a file.
func (s *sparse) save(tb testing.TB, path string) {
	tb.Helper()
	f, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	err = f.Truncate(s.bytes)
	for e := range s.data().All() {
		data := make([]byte, e.Length)
		err = errors.Join(err, s.ReadAt(tb.Context(), data, e.Offset))
		_, wrote := f.WriteAt(data, e.Offset)
		err = errors.Join(err, wrote)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		tb.Fatal(err)
	}
}

// noise returns n bytes: of any value, or the same few again and again.
func noise(r *rand.Rand, n int64) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], r.Uint64())
	data := make([]byte, n)
	_, _ = rand.NewChaCha8(seed).Read(data)
	if r.IntN(3) == 0 {
		for i := range data {
			data[i] = data[i%61]
		}
	}
	return data
}

// sparseTarget takes a restore, and records what it was told.
type sparseTarget struct {
	mu     sync.Mutex
	disk   *sparse
	told   []extent.Extent
	synced bool
}

func (t *sparseTarget) WriteAt(_ context.Context, p []byte, offset int64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.disk.write(p, offset)
	t.told, t.synced = append(t.told, extent.Extent{Offset: offset, Length: int64(len(p))}), false
	return nil
}

func (t *sparseTarget) Zero(_ context.Context, e extent.Extent) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.disk.zero(e)
	t.told, t.synced = append(t.told, e), false
	return nil
}

func (t *sparseTarget) Sync(context.Context) error { t.synced = true; return nil }

// comparison compares disks of restore points with what they held.
type comparison struct {
	r      *Repository
	random *rand.Rand
	// seen holds the blocks that were read, so that blocks that many restore points share are read once.
	seen map[object.ID]uint64
}

var blockSeed = maphash.MakeSeed()

func compare(r *Repository, random *rand.Rand) *comparison {
	return &comparison{r: r, random: random, seen: map[object.ID]uint64{}}
}

// blocks compares every block, and checks that everything else is a hole.
func (c *comparison) blocks(ctx context.Context, d Disk, want *sparse) error {
	image, err := c.r.Image(ctx, d)
	if err != nil {
		return err
	}
	if d.Bytes != want.bytes {
		return verdict.Error("%d bytes, want %d", d.Bytes, want.bytes)
	}
	data, err := image.Data(ctx)
	if err != nil {
		return err
	}
	if lost := want.data().Subtract(data); !lost.Empty() {
		return verdict.Error("%v are holes", lost)
	}
	buffer := make([]byte, d.BlockBytes)
	for e := range data.All() {
		for at := e.Offset; at < e.End(); at += d.BlockBytes {
			held := buffer[:min(d.BlockBytes, e.End()-at)]
			if err := want.ReadAt(ctx, held, at); err != nil {
				return err
			}
			sum, err := c.block(ctx, image, at)
			if err != nil {
				return err
			}
			if sum != maphash.Bytes(blockSeed, held) {
				return verdict.Error("the block at %d differs", at)
			}
		}
	}
	return nil
}

// block returns a sum of the block that has the byte at offset.
func (c *comparison) block(ctx context.Context, image *Image, offset int64) (uint64, error) {
	i, j := image.Geometry.Locate(offset)
	entries, err := image.ReadRegion(ctx, i)
	if err != nil {
		return 0, err
	}
	id := entries[j].Object
	if sum, ok := c.seen[id]; ok {
		return sum, nil
	}
	data, err := table.ReadBlock(ctx, c.r.conn.Reader(), id, entries[j].Length)
	if err != nil {
		return 0, err
	}
	c.seen[id] = maphash.Bytes(blockSeed, data)
	return c.seen[id], nil
}

// whole compares a disk by random access and, if restore is set, by a restore.
func (c *comparison) whole(ctx context.Context, d Disk, want *sparse, restore bool) error {
	if err := c.blocks(ctx, d, want); err != nil {
		return err
	}
	image, err := c.r.Image(ctx, d)
	if err != nil {
		return err
	}
	data, err := image.Data(ctx)
	if err != nil {
		return err
	}
	for _, e := range places(c.random, data, d.Bytes) {
		got, held := make([]byte, e.Length), make([]byte, e.Length)
		if err := errors.Join(image.ReadAt(ctx, got, e.Offset), want.ReadAt(ctx, held, e.Offset)); err != nil {
			return err
		}
		if string(got) != string(held) {
			return verdict.Error("bytes %s differ", e)
		}
		if err := sameRun(ctx, image, data, e); err != nil {
			return err
		}
	}
	if !restore {
		return nil
	}
	return sameRestored(ctx, image, want, c.random)
}

// places returns some extents in and around the data, some anywhere, and the end.
func places(random *rand.Rand, data extent.Set, bytes int64) (out []extent.Extent) {
	disk := extent.Extent{Length: bytes}
	edges := slices.Collect(data.All())
	random.Shuffle(len(edges), func(i, j int) { edges[i], edges[j] = edges[j], edges[i] })
	for _, e := range edges[:min(3, len(edges))] {
		out = append(out, extent.Extent{Offset: max(0, e.Offset-777), Length: 2000}.Intersect(disk), extent.Extent{Offset: e.End() - 777, Length: 2000}.Intersect(disk))
	}
	for range 3 {
		out = append(out, extent.Extent{Offset: random.Int64N(bytes), Length: 1 + random.Int64N(mib)}.Intersect(disk))
	}
	out = append(out, extent.Extent{Offset: max(0, bytes-5), Length: min(5, bytes)})
	return slices.DeleteFunc(out, extent.Extent.Empty)
}

// sameRun compares NextRun with Data.
func sameRun(ctx context.Context, image *Image, data extent.Set, e extent.Extent) error {
	length, zero, err := image.NextRun(ctx, e)
	if err != nil {
		return err
	}
	run := extent.Extent{Offset: e.Offset, Length: length}
	if length <= 0 || zero == data.Overlaps(run) || (!zero && !data.Contains(run)) {
		return verdict.Error("run %s in %s is told as hole: %t; data is %v", run, e, zero, data)
	}
	if next := (extent.Extent{Offset: run.End(), Length: 1}); run.End() < e.End() && zero != data.Overlaps(next) {
		return verdict.Error("run %s in %s ends too early", run, e)
	}
	return nil
}

// sameRestored restores to a target that holds other data.
func sameRestored(ctx context.Context, image *Image, want *sparse, random *rand.Rand) error {
	target := &sparseTarget{disk: newSparse(want.bytes)}
	for range 3 {
		at := random.Int64N(want.bytes)
		target.disk.write(noise(random, min(want.bytes-at, 1+random.Int64N(mib))), at)
	}
	if err := image.Restore(ctx, target, RestoreOptions{Workers: 2}); err != nil {
		return err
	}
	if !target.synced {
		return errors.New("the target was not synced")
	}
	if told := extent.NewSet(target.told...); !told.Contains(extent.Extent{Length: want.bytes}) {
		return verdict.Error("only %v were written", told)
	}
	if different := target.disk.changed(want); !different.Empty() {
		return verdict.Error("restored, %v differ", different)
	}
	return nil
}
