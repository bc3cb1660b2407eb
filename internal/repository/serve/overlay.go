package serve

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/extent"
)

const (
	// clusterBytes is the unit in which the overlay takes over from the disk below.
	clusterBytes = 64 << 10
	// mapMagic begins the file that says which clusters the overlay has.
	mapMagic = "varvecow"
)

// base is the disk below an overlay.
type base interface {
	Size() int64
	ReadAt(ctx context.Context, p []byte, offset int64) error
	NextRun(ctx context.Context, e extent.Extent) (length int64, zero bool, err error)
}

// Overlay is a writable disk: what was written is in a local file, everything else comes from the disk below. The file holds the bytes
// at their own offsets, and <file>.map says which clusters of 64 KiB it has. The map is stored by Flush, after the
// bytes: what was flushed is there after a crash, as on any disk. The same file on another disk is refused.
type Overlay struct {
	below base
	file  *os.File
	token string

	mu      sync.RWMutex // held for writing by whoever changes clusters
	present []uint64
	dirty   bool // the map has changed since it was stored
}

// OpenOverlay opens path over below, or makes it. token names the disk below.
func OpenOverlay(path, token string, below base) (*Overlay, error) {
	o := &Overlay{below: below, token: token, present: make([]uint64, (below.Size()+64*clusterBytes-1)/(64*clusterBytes))}
	_, statErr := os.Stat(path)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	o.file = f
	stored, err := os.ReadFile(o.mapPath())
	switch {
	case err == nil:
		err = o.decode(stored)
	case !errors.Is(err, os.ErrNotExist):
	case statErr == nil:
		if info, serr := f.Stat(); serr == nil && info.Size() > 0 {
			err = fmt.Errorf("%s has content and no map beside it: it is no overlay", path)
		} else {
			err = serr
		}
	default:
		err = nil
	}
	if err == nil {
		err = f.Truncate(below.Size())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open overlay %s: %w", path, err), f.Close())
	}
	o.dirty = stored == nil
	return o, nil
}

func (o *Overlay) mapPath() string { return o.file.Name() + ".map" }

// encode is the map: magic, checksum of the rest, length of the token, the token itself, clusters.
func (o *Overlay) encode() []byte {
	body := binary.LittleEndian.AppendUint32(nil, uint32(len(o.token)))
	body = append(body, o.token...)
	for _, w := range o.present {
		body = binary.LittleEndian.AppendUint64(body, w)
	}
	out := binary.LittleEndian.AppendUint32([]byte(mapMagic), crc32.ChecksumIEEE(body))
	return append(out, body...)
}

func (o *Overlay) decode(data []byte) error {
	head := len(mapMagic) + 4
	if len(data) < head+4 || string(data[:len(mapMagic)]) != mapMagic || binary.LittleEndian.Uint32(data[len(mapMagic):]) != crc32.ChecksumIEEE(data[head:]) {
		return fmt.Errorf("%s is damaged", o.mapPath())
	}
	body := data[head:]
	n := int64(binary.LittleEndian.Uint32(body))
	body = body[4:]
	if n > int64(len(body)) || string(body[:n]) != o.token {
		return fmt.Errorf("it belongs to another disk, %q", body[:min(n, int64(len(body)))])
	}
	if body = body[n:]; len(body) != 8*len(o.present) {
		return fmt.Errorf("%s is for a disk of another size", o.mapPath())
	}
	for i := range o.present {
		o.present[i] = binary.LittleEndian.Uint64(body[8*i:])
	}
	return nil
}

func (o *Overlay) has(cluster int64) bool { return o.present[cluster/64]&(1<<(cluster%64)) != 0 }

// Size is the disk's in bytes.
func (o *Overlay) Size() int64 { return o.below.Size() }

// run is how long from e.Offset on, up to e's end, all clusters are in the overlay, or none is.
func (o *Overlay) run(e extent.Extent) (length int64, here bool) {
	here = o.has(e.Offset / clusterBytes)
	at := e.Offset
	for at < e.End() && o.has(at/clusterBytes) == here {
		at = (at/clusterBytes + 1) * clusterBytes
	}
	return min(at, e.End()) - e.Offset, here
}

// ReadAt fills p from offset.
func (o *Overlay) ReadAt(ctx context.Context, p []byte, offset int64) error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for len(p) > 0 {
		n, here := o.run(extent.Extent{Offset: offset, Length: int64(len(p))})
		var err error
		if here {
			_, err = o.file.ReadAt(p[:n], offset)
		} else {
			err = o.below.ReadAt(ctx, p[:n], offset)
		}
		if err != nil {
			return err
		}
		p, offset = p[n:], offset+n
	}
	return nil
}

// WriteAt writes p at offset. The rest of a cluster that is written in part is copied from below.
func (o *Overlay) WriteAt(ctx context.Context, p []byte, offset int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := extent.Extent{Offset: offset, Length: int64(len(p))}
	wide := e.Widen(clusterBytes, o.Size())
	for _, edge := range []extent.Extent{
		{Offset: wide.Offset, Length: e.Offset - wide.Offset},
		{Offset: e.End(), Length: wide.End() - e.End()},
	} {
		if err := o.fill(ctx, edge); err != nil {
			return err
		}
	}
	if _, err := o.file.WriteAt(p, offset); err != nil {
		return err
	}
	for c := wide.Offset / clusterBytes; c*clusterBytes < wide.End(); c++ {
		o.present[c/64] |= 1 << (c % 64)
	}
	o.dirty = true
	return nil
}

// fill copies e, which is within one cluster, from below if the overlay has not got it.
func (o *Overlay) fill(ctx context.Context, e extent.Extent) error {
	if e.Empty() || o.has(e.Offset/clusterBytes) {
		return nil
	}
	buffer := make([]byte, e.Length)
	if err := o.below.ReadAt(ctx, buffer, e.Offset); err != nil {
		return err
	}
	_, err := o.file.WriteAt(buffer, e.Offset)
	return err
}

// Flush makes everything written durable.
func (o *Overlay) Flush(context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.file.Sync(); err != nil || !o.dirty {
		return err
	}
	if err := durable.Write(o.mapPath(), o.encode()); err != nil {
		return err
	}
	o.dirty = false
	return nil
}

// NextRun says how many bytes from e.Offset on are of one kind, and whether they are known to be zero.
func (o *Overlay) NextRun(ctx context.Context, e extent.Extent) (length int64, zero bool, err error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	n, here := o.run(e)
	if here {
		return n, false, nil
	}
	return o.below.NextRun(ctx, extent.Extent{Offset: e.Offset, Length: n})
}

// Contexts are the disk's metadata contexts.
func (o *Overlay) Contexts() []string { return []string{allocation} }

// BlockStatus reports where the disk has holes.
func (o *Overlay) BlockStatus(ctx context.Context, _ string, e extent.Extent, report func(int64, uint64) bool) error {
	return status(ctx, e, o.NextRun, report)
}

// Close flushes and closes the file.
func (o *Overlay) Close() error {
	return errors.Join(o.Flush(context.Background()), o.file.Close())
}
