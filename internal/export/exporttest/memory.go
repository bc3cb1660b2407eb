// Package exporttest has a volume in memory, for tests of what carries and serves volumes.
package exporttest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// BlockBytes is the granularity of a Volume's regions.
const BlockBytes = 64 << 10

// Volume is a disk in memory.
type Volume struct {
	Description export.Info
	Content     []byte
	// Dirty are the blocks that changed since the base. It counts only if Description.Incremental.
	Dirty []bool
}

// NewVolume returns a volume of random regions: about a third of the blocks are zeroes. If it is incremental, about half of
// them are dirty.
func NewVolume(name string, size int64, incremental bool, seed uint64) *Volume {
	random := rand.New(rand.NewPCG(seed, 1))
	v := &Volume{
		Description: export.Info{Name: name, Bytes: size, Incremental: incremental, PointInTime: fmt.Sprintf("%s-%d", name, seed)},
		Content:     make([]byte, size),
	}
	for offset := int64(0); offset < size; offset += BlockBytes {
		block := v.Content[offset:min(offset+BlockBytes, size)]
		if random.IntN(3) > 0 {
			for i := range block {
				block[i] = byte(random.Uint32())
			}
		}
		v.Dirty = append(v.Dirty, incremental && random.IntN(2) == 0)
	}
	return v
}

// Info implements export.Volume.
func (v *Volume) Info() export.Info { return v.Description }

var zeroes [BlockBytes]byte

func (v *Volume) kind(e extent.Extent) export.Kind {
	switch content := v.Content[e.Offset:e.End()]; {
	case v.Description.Incremental && !v.Dirty[e.Offset/BlockBytes]:
		return export.Clean
	case bytes.Equal(content, zeroes[:len(content)]):
		return export.Zero
	}
	return export.Data
}

// Regions implements export.Volume.
func (v *Volume) Regions(ctx context.Context, e extent.Extent, report func(export.Region) bool) error {
	if err := v.check(ctx, e); err != nil {
		return err
	}
	var region export.Region
	for offset := e.Offset; offset < e.End(); {
		next := min((offset/BlockBytes+1)*BlockBytes, e.End())
		part := extent.Extent{Offset: offset, Length: next - offset}
		switch kind := v.kind(part); {
		case region.Length > 0 && region.Kind == kind:
			region.Length += part.Length
		case region.Length > 0 && !report(region):
			return nil
		default:
			region = export.Region{Extent: part, Kind: kind}
		}
		offset = next
	}
	if region.Length > 0 {
		report(region)
	}
	return nil
}

// Read implements export.Volume.
func (v *Volume) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	var failure error
	err := v.Regions(ctx, e, func(r export.Region) bool {
		if r.Kind == export.Clean && scope == export.Changed {
			return true
		}
		if r.Kind == export.Zero {
			failure = sink(export.Chunk{Extent: r.Extent})
			return failure == nil
		}
		for offset := r.Offset; offset < r.End() && failure == nil; offset += export.MaxChunkBytes {
			if failure = ctx.Err(); failure != nil {
				return false
			}
			part := extent.Extent{Offset: offset, Length: min(export.MaxChunkBytes, r.End()-offset)}
			data := v.Content[part.Offset:part.End()]
			failure = sink(export.Chunk{Extent: part, Data: data, Checksum: export.Checksum(data)})
		}
		return failure == nil
	})
	if failure != nil {
		return failure
	}
	return err
}

func (v *Volume) check(ctx context.Context, e extent.Extent) error {
	if !e.Valid() || e.End() > v.Description.Bytes {
		return errclass.Errorf(errclass.Invalid, "volume %s has %d bytes: %v is not in it", v.Description.Name, v.Description.Bytes, e)
	}
	return ctx.Err()
}

// Volumes are volumes by name.
type Volumes map[string]export.Volume

// Open implements export.Volumes.
func (v Volumes) Open(_ context.Context, name string) (export.Volume, error) {
	if volume, ok := v[name]; ok {
		return volume, nil
	}
	return nil, errclass.Errorf(errclass.NotFound, "the backup has no volume %s", name)
}
