package serve

import (
	"context"
	"sync/atomic"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository"
)

const (
	// defaultCacheBytes is the size of the cache.
	defaultCacheBytes = 256 << 20
	// aheadBytes is how much is fetched ahead of a sequential reader.
	aheadBytes = 4 << 20
	// fetchBytes is how much is fetched at once for all readers. While a block is fetched it takes up to three times its size.
	fetchBytes = 32 << 20

	// allocation is the metadata context that tells where a disk has holes, and hole and zero its flags (NBD protocol, "base:allocation").
	allocation       = "base:allocation"
	flagHole, isZero = 1 << 0, 1 << 1
)

// Options are for New.
type Options struct {
	// CacheBytes bounds the blocks that are kept in memory; 0: 256 MiB.
	CacheBytes int64
}

// Disk is a disk of a restore point as a read-only NBD backend.
type Disk struct {
	image *repository.Image
	cache *cache
	life  context.Context //nolint:containedctx // what is fetched may serve several requests
	end   context.CancelFunc
	// window is how many blocks are fetched while a reader waits for the one before them.
	window int64
	// expected is where a sequential reader would go on.
	expected atomic.Int64
}

// New serves image until Close.
func New(image *repository.Image, o Options) *Disk {
	if o.CacheBytes <= 0 {
		o.CacheBytes = defaultCacheBytes
	}
	block := image.Disk.BlockBytes
	d := &Disk{image: image, cache: newCache(o.CacheBytes, max(fetchBytes/block, 1), image.Block)}
	d.life, d.end = context.WithCancel(context.Background())
	// What is fetched ahead must not push out of a small cache what is being read.
	d.window = min(aheadBytes, o.CacheBytes/4) / block
	return d
}

// Close ends what is being fetched. Nobody may use the disk any more.
func (d *Disk) Close() {
	d.end()
	d.cache.fetching.Wait()
}

// Size is the disk's in bytes.
func (d *Disk) Size() int64 { return d.image.Disk.Bytes }

// blockExtent returns the bytes of a block.
func (d *Disk) blockExtent(number int64) extent.Extent {
	size := d.image.Disk.BlockBytes
	return extent.Extent{Offset: number * size, Length: min(size, d.Size()-number*size)}
}

// ReadAt fills p from offset. Who reads sequentially finds what comes after p fetched already.
func (d *Disk) ReadAt(ctx context.Context, p []byte, offset int64) error {
	whole := extent.Extent{Offset: offset, Length: int64(len(p))}
	ahead := int64(0)
	if d.expected.Swap(whole.End()) == offset {
		ahead = aheadBytes
	}
	return d.walkBlocks(ctx, whole, ahead, func(in extent.Extent, data []byte) {
		part := whole.Intersect(in)
		to := p[part.Offset-offset : part.End()-offset]
		if data == nil {
			clear(to)
			return
		}
		copy(to, data[part.Offset-in.Offset:])
	})
}

// Cache fetches e.
func (d *Disk) Cache(ctx context.Context, e extent.Extent) error {
	return d.walkBlocks(ctx, e, 0, func(extent.Extent, []byte) {})
}

// walkBlocks calls use for each block that e touches, in order, with its content, or nil for a hole. While it waits for one, the next
// ones are fetched, up to ahead bytes after e.
func (d *Disk) walkBlocks(ctx context.Context, e extent.Extent, ahead int64, use func(extent.Extent, []byte)) error {
	size := d.image.Disk.BlockBytes
	stop := min(e.End()+ahead, d.Size())
	next := e.Offset/size + 1
	for number := e.Offset / size; number*size < e.End(); number++ {
		for ; next <= number+d.window && next*size < stop; next++ {
			d.fetchAhead(next)
		}
		in := d.blockExtent(number)
		data, err := d.readBlock(ctx, number, in)
		if err != nil {
			return err
		}
		use(in, data)
	}
	return nil
}

// readBlock returns the content of a block, which is in, or nil for a hole.
func (d *Disk) readBlock(ctx context.Context, number int64, in extent.Extent) ([]byte, error) {
	if _, zero, err := d.image.NextRun(ctx, in); err != nil || zero {
		return nil, err
	}
	return d.cache.getBlock(ctx, d.life, number)
}

// fetchAhead begins to fetch a block that is known to have data.
func (d *Disk) fetchAhead(number int64) {
	if zero, known := d.image.ZeroBlock(number); known && !zero {
		d.cache.beginFetch(d.life, number)
	}
}

// NextRun says how many bytes from e.Offset on are of one kind, and whether they are a hole.
func (d *Disk) NextRun(ctx context.Context, e extent.Extent) (length int64, zero bool, err error) {
	return d.image.NextRun(ctx, e)
}

// Contexts are the disk's metadata contexts.
func (d *Disk) Contexts() []string { return []string{allocation} }

// BlockStatus reports where the disk has holes.
func (d *Disk) BlockStatus(ctx context.Context, _ string, e extent.Extent, report func(int64, uint64) bool) error {
	return reportRuns(ctx, e, d.NextRun, report)
}

// reportRuns reports the runs of e.
func reportRuns(ctx context.Context, e extent.Extent, next func(context.Context, extent.Extent) (int64, bool, error), report func(int64, uint64) bool) error {
	for !e.Empty() {
		n, zero, err := next(ctx, e)
		if err != nil {
			return err
		}
		flags := uint64(0)
		if zero {
			flags = flagHole | isZero
		}
		if !report(n, flags) {
			return nil
		}
		n = min(n, e.Length)
		e.Offset, e.Length = e.Offset+n, e.Length-n
	}
	return nil
}
