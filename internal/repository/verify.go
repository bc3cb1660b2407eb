package repository

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/extent"
)

// VerifyOptions are for Verify.
type VerifyOptions struct {
	// Percent of the stored contents is read, decrypted and hashed again; every table is read in any case, and
	// that every block has its place is checked in any case. 0 to 100.
	Percent float64
	Workers int
	// Progress is called with the bytes read so far, from several goroutines; nil: not.
	Progress func(contents, bytes int64)
	// Looked is called with how many bytes of all restore points' disks had their blocks looked up so far, of how many, from several
	// goroutines, one at a time; nil: not.
	Looked func(bytes, of int64)
}

// Damage is a part of a disk that cannot be restored, or a whole one if Extent is empty.
type Damage struct {
	Point  *RestorePoint
	Disk   string
	Extent extent.Extent
	Err    error
}

// Report is what Verify found.
type Report struct {
	Points   int
	Contents int64
	Bytes    int64
	Damage   []Damage
	// Unlisted is damage that is of no disk: restore points that are lost or whose description cannot be read, indexes, the format.
	Unlisted error
}

// Damaged says whether anything is wrong.
func (r *Report) Damaged() bool { return len(r.Damage) > 0 || r.Unlisted != nil }

// Verify reads what is stored, past all caches, and says which restore points are damaged, and where. The error is for what kept it from looking.
func (r *Repository) Verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	if o.Percent < 0 || o.Percent > 100 {
		return nil, fmt.Errorf("%w: %v percent", ErrInvalid, o.Percent)
	}
	if o.Workers <= 0 {
		o.Workers = DefaultWorkers
	}
	i, err := inspect(ctx, r.configFile, r.password)
	if err != nil {
		return nil, err
	}
	report, err := i.verify(ctx, o)
	if err := errors.Join(err, i.Close(ctx)); err != nil {
		return nil, err
	}
	report.Unlisted = errors.Join(i.damage(), report.Unlisted)
	return report, nil
}

// verify is Verify on a connection that reads from the storage.
func (r *Repository) verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	report := &Report{}
	bad, err := r.readContents(ctx, o, report)
	if err != nil {
		return nil, err
	}
	lost, _, err := r.lost(ctx)
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	points, err := r.List(ctx, nil)
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	records := r.badRecords(ctx)
	if records != nil && !errors.Is(records, ErrCorrupt) {
		return nil, records
	}
	report.Unlisted = errors.Join(err, lostError(lost), records)
	report.Points = len(points)
	packs, err := blob.ReadBlobMap(ctx, r.rep.BlobReader())
	if err != nil {
		return nil, fmt.Errorf("list the blobs: %w", err)
	}
	v := &verification{r: r.reader(), bad: bad, packs: packs, known: map[object.ID]error{}, looked: o.Looked}
	for _, p := range points {
		v.of += p.DiskBytes()
	}
	for _, p := range points {
		for _, d := range p.Disks {
			damage, err := v.disk(ctx, d)
			if err != nil {
				return nil, fmt.Errorf("restore point %s: %w", p.ID, err)
			}
			for _, x := range damage {
				x.Point = p
				report.Damage = append(report.Damage, x)
			}
		}
	}
	return report, nil
}

// readContents reads a part of all contents, each once, and returns what is wrong with those that are not what they were.
func (r *Repository) readContents(ctx context.Context, o VerifyOptions, report *Report) (map[content.ID]error, error) {
	bad := map[content.ID]error{}
	var mu sync.Mutex
	rehash := r.rehash()
	err := r.rep.ContentReader().IterateContents(ctx, content.IterateOptions{Parallel: o.Workers}, func(info content.Info) error {
		if !sampled(info.ContentID, o.Percent) {
			return nil
		}
		data, err := r.reader().GetContent(ctx, info.ContentID)
		if err != nil {
			err = readError(fmt.Sprintf("read content %s", info.ContentID), err)
		} else {
			err = rehash(info.ContentID, data)
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			bad[info.ContentID] = err
		}
		report.Contents++
		report.Bytes += int64(len(data))
		if o.Progress != nil {
			o.Progress(report.Contents, report.Bytes)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the contents: %w", err)
	}
	return bad, nil
}

// sampled picks percent of the contents, always the same ones of a content's ID.
func sampled(id content.ID, percent float64) bool {
	if percent >= 100 {
		return true
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(id.String()))
	return float64(h.Sum32()%10000) < percent*100
}

// rehash compares a content with its ID, which is a keyed hash of it; repositories with another hash are taken at kopia's word, which has
// authenticated the content.
func (r *Repository) rehash() func(content.ID, []byte) error {
	f := r.rep.ContentReader().ContentFormat()
	if f.GetHashFunction() != hashAlgorithm {
		return func(content.ID, []byte) error { return nil }
	}
	key := f.GetHmacSecret()
	return func(id content.ID, data []byte) error {
		h, err := blake3.NewKeyed(key[:32])
		if err != nil {
			return err
		}
		if _, err := h.Write(data); err != nil {
			return err
		}
		if subtle.ConstantTimeCompare(h.Sum(nil)[:16], id.Hash()) != 1 {
			return fmt.Errorf("%w: content %s has another hash", ErrCorrupt, id)
		}
		return nil
	}
}

// verification is what was found so far, so that nothing is looked at twice.
type verification struct {
	r     contentReader
	bad   map[content.ID]error
	packs map[blob.ID]blob.Metadata

	mu sync.Mutex
	// known are the tables of regions that were looked at, and what is wrong with them.
	known map[object.ID]error
	// bytes of all disks were looked at, of so many.
	bytes, of int64
	looked    func(bytes, of int64)
}

// disk returns what cannot be restored of a disk.
func (v *verification) disk(ctx context.Context, d Disk) ([]Damage, error) {
	g, err := newGeometry(d.Bytes, d.BlockBytes)
	if err != nil {
		return nil, err
	}
	list, err := readRegions(ctx, v.r, g, d.Object)
	if errors.Is(err, ErrCorrupt) {
		v.count(d.Bytes)
		return []Damage{{Disk: d.Name, Err: err}}, nil
	}
	if err != nil {
		return nil, err
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	queued := map[object.ID]bool{}
	for i, e := range list {
		if v.seen(e.Object) || queued[e.Object] {
			v.count(g.region(i).Length)
			continue
		}
		queued[e.Object] = true
		group.Go(func() error {
			err := v.region(inner, g, i, e.Object)
			if err != nil && !errors.Is(err, ErrCorrupt) {
				return err
			}
			v.count(g.region(i).Length)
			v.mu.Lock()
			defer v.mu.Unlock()
			v.known[e.Object] = err
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var out []Damage
	for i, e := range list {
		if err := v.known[e.Object]; err != nil {
			out = append(out, Damage{Disk: d.Name, Extent: g.region(i), Err: err})
		}
	}
	return out, nil
}

// count tells that so many bytes more were looked at.
func (v *verification) count(bytes int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bytes += bytes
	if v.looked != nil {
		v.looked(v.bytes, v.of)
	}
}

func (v *verification) seen(id object.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.known[id]
	return ok
}

// region says what is wrong with a region, or nil.
func (v *verification) region(ctx context.Context, g geometry, i int, id object.ID) error {
	entries, err := readBlocks(ctx, v.r, g, i, id)
	if err != nil {
		return err
	}
	last := object.EmptyID
	for j, e := range entries {
		if e.Object == last {
			continue
		}
		last = e.Object
		if err := v.block(ctx, e.Object); err != nil {
			return fmt.Errorf("block at %d: %w", g.blockOf(i, j).Offset, err)
		}
	}
	return nil
}

// block says what is wrong with a block: what was read of it, or that its place in the storage is not there.
func (v *verification) block(ctx context.Context, id object.ID) error {
	cid, _, ok := id.ContentID()
	if !ok {
		return fmt.Errorf("%w: %s is not a block", ErrCorrupt, id)
	}
	if err := v.bad[cid]; err != nil {
		return err
	}
	info, err := v.r.ContentInfo(ctx, cid)
	if err != nil {
		return readError(fmt.Sprintf("look up %s", id), err)
	}
	pack, ok := v.packs[info.PackBlobID]
	if !ok || int64(info.PackOffset)+int64(info.PackedLength) > pack.Length {
		return fmt.Errorf("%w: blob %s, which has block %s, is missing or too short", ErrCorrupt, info.PackBlobID, id)
	}
	return nil
}
