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
	// expected is where a sequential reader would go on.
	expected atomic.Int64
}

// New serves image until Close.
func New(image *repository.Image, o Options) *Disk {
	if o.CacheBytes <= 0 {
		o.CacheBytes = defaultCacheBytes
	}
	d := &Disk{image: image}
	d.life, d.end = context.WithCancel(context.Background())
	d.cache = newCache(o.CacheBytes, func(ctx context.Context, number int64) ([]byte, error) {
		e := d.block(number)
		data := make([]byte, e.Length)
		return data, image.ReadAt(ctx, data, e.Offset)
	})
	return d
}

// Close ends what is being fetched. Nobody may use the disk any more.
func (d *Disk) Close() {
	d.end()
	d.cache.fetching.Wait()
}

// Size is the disk's in bytes.
func (d *Disk) Size() int64 { return d.image.Disk.Bytes }

func (d *Disk) block(number int64) extent.Extent {
	size := d.image.Disk.BlockBytes
	return extent.Extent{Offset: number * size, Length: min(size, d.Size()-number*size)}
}

// ReadAt fills p from offset.
func (d *Disk) ReadAt(ctx context.Context, p []byte, offset int64) error {
	size := d.image.Disk.BlockBytes
	end := offset + int64(len(p))
	if d.expected.Swap(end) == offset {
		d.ahead(end)
	}
	for at := offset; at < end; {
		run, zero, err := d.NextRun(ctx, extent.Extent{Offset: at, Length: end - at})
		if err != nil {
			return err
		}
		if zero {
			clear(p[at-offset : at-offset+run])
			at += run
			continue
		}
		e := d.block(at / size)
		data, err := d.cache.get(ctx, d.life, at/size)
		if err != nil {
			return err
		}
		at += int64(copy(p[at-offset:], data[at-e.Offset:]))
	}
	return nil
}

// ahead begins to fetch what comes after offset.
func (d *Disk) ahead(offset int64) {
	size := d.image.Disk.BlockBytes
	for number := (offset + size - 1) / size; number*size < min(offset+aheadBytes, d.Size()); number++ {
		if zero, known := d.image.ZeroBlock(number); known && !zero {
			d.cache.start(d.life, number)
		}
	}
}

// Cache fetches e.
func (d *Disk) Cache(ctx context.Context, e extent.Extent) error {
	size := d.image.Disk.BlockBytes
	for number := e.Offset / size; number*size < e.End(); number++ {
		if _, err := d.cache.get(ctx, d.life, number); err != nil {
			return err
		}
	}
	return nil
}

// NextRun says how many bytes from e.Offset on are of one kind, and whether they are a hole.
func (d *Disk) NextRun(ctx context.Context, e extent.Extent) (length int64, zero bool, err error) {
	return d.image.NextRun(ctx, e)
}

// Contexts are the disk's metadata contexts.
func (d *Disk) Contexts() []string { return []string{allocation} }

// BlockStatus reports where the disk has holes.
func (d *Disk) BlockStatus(ctx context.Context, _ string, e extent.Extent, report func(int64, uint64) bool) error {
	return status(ctx, e, d.NextRun, report)
}

// status reports the runs of e.
func status(ctx context.Context, e extent.Extent, next func(context.Context, extent.Extent) (int64, bool, error), report func(int64, uint64) bool) error {
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
