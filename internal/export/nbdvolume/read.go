package nbdvolume

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/sparse"
)

const (
	// MaxReadBytes is the most that one call of Read holds in memory, in bytes.
	MaxReadBytes = 8 << 20
	// readsAhead is how many parts of the disk one call of Read waits for at the same time.
	readsAhead = 64
	// chunkBytes is the longest chunk: what the tunnel carries in one frame, so that it need not cut it and compute the
	// checksums of the pieces.
	chunkBytes = 128 << 10
	// zeroBlock is the granularity in which data is searched for zeroes: that of the bitmaps.
	zeroBlock = 64 << 10
)

var (
	smallBuffers = sync.Pool{New: func() any { return new([zeroBlock]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([export.MaxChunkBytes]byte) }}
)

// piece is a part of the disk that is being read, or is known to be zeroes.
type piece struct {
	extent.Extent
	// buffer is a whole one of one of the pools, or nil for zeroes.
	buffer []byte
	// read has the outcome; nil for zeroes.
	read chan error
}

// Read implements export.Volume. Zeroes that the server reports as data are found, in aligned blocks of 64 KiB.
func (v *Volume) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	if err := v.checkExtent(e); err != nil {
		return err
	}
	client, err := v.line.client(ctx)
	if err != nil {
		return fmt.Errorf("read %v of volume %s: %w", e, v.info.Name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	memory := semaphore.NewWeighted(MaxReadBytes)
	pieces := make(chan piece, readsAhead)
	var planned error
	go func() {
		defer close(pieces)
		planned = v.line.guard(func() error { return v.planReads(ctx, client, e, scope, memory, pieces) })
	}()
	err = v.deliver(ctx, client, pieces, memory, sink)
	cancel()
	for p := range pieces { // nothing may use a buffer after it is given back
		p.release(memory)
	}
	if err != nil {
		return err
	}
	return planned
}

// planReads begins to read what scope wants of e, in order.
func (v *Volume) planReads(ctx context.Context, client *nbd.Client, e extent.Extent, scope export.Scope, memory *semaphore.Weighted, pieces chan<- piece) error {
	var stopped error
	send := func(p piece) bool {
		select {
		case pieces <- p:
			return true
		case <-ctx.Done():
			stopped = context.Cause(ctx)
			p.release(memory)
			return false
		}
	}
	err := v.Regions(ctx, e, func(r export.Region) bool {
		switch {
		case r.Kind == export.Clean && scope == export.Changed:
			return true
		case r.Kind == export.Zero:
			return send(piece{Extent: r.Extent})
		}
		for at := r.Offset; at < r.End(); {
			// Cut at multiples, so that blocks of zeroes are found wherever a region begins.
			part := extent.Extent{Offset: at, Length: min(export.MaxChunkBytes-at%export.MaxChunkBytes, r.End()-at)}
			if stopped = memory.Acquire(ctx, bufferBytes(part)); stopped != nil {
				return false
			}
			if !send(v.beginRead(ctx, client, part)) {
				return false
			}
			at = part.End()
		}
		return true
	})
	if stopped != nil {
		return stopped
	}
	return err
}

func (v *Volume) beginRead(ctx context.Context, client *nbd.Client, e extent.Extent) piece {
	p := piece{Extent: e, buffer: takeBuffer(e), read: make(chan error, 1)}
	go func() {
		p.read <- v.line.guard(func() error { return client.ReadAt(ctx, p.buffer[:e.Length], e.Offset) })
	}()
	return p
}

// bufferBytes returns how long the buffer for a part of the disk is.
func bufferBytes(e extent.Extent) int64 {
	if e.Length <= zeroBlock {
		return zeroBlock
	}
	return export.MaxChunkBytes
}

func takeBuffer(e extent.Extent) []byte {
	if bufferBytes(e) == zeroBlock {
		return smallBuffers.Get().(*[zeroBlock]byte)[:] //nolint:forcetypeassert // the pool has nothing else
	}
	return largeBuffers.Get().(*[export.MaxChunkBytes]byte)[:] //nolint:forcetypeassert // the pool has nothing else
}

// release waits until nothing writes into the piece's buffer, and gives it back.
func (p *piece) release(memory *semaphore.Weighted) {
	if p.buffer == nil {
		return
	}
	<-p.read
	p.free(memory)
}

func (p *piece) free(memory *semaphore.Weighted) {
	if size := int64(len(p.buffer)); size == zeroBlock {
		smallBuffers.Put((*[zeroBlock]byte)(p.buffer))
	} else {
		largeBuffers.Put((*[export.MaxChunkBytes]byte)(p.buffer))
	}
	memory.Release(bufferBytes(p.Extent))
}

// deliver hands the pieces to sink until one fails.
func (v *Volume) deliver(ctx context.Context, client *nbd.Client, pieces <-chan piece, memory *semaphore.Weighted, sink func(export.Chunk) error) error {
	for p := range pieces {
		if p.buffer == nil {
			if err := sink(export.Chunk{Extent: p.Extent}); err != nil {
				return err
			}
			continue
		}
		err := <-p.read
		if err != nil {
			err = fmt.Errorf("read %v of volume %s: %w", p.Extent, v.info.Name, transientIfDead(ctx, client, err))
		} else {
			err = sendChunks(p.Extent, p.buffer[:p.Length], sink)
		}
		p.free(memory)
		if err != nil {
			return err
		}
	}
	return nil
}

// sendChunks splits data into what is zeroes and what is not, the latter in pieces of at most chunkBytes.
func sendChunks(e extent.Extent, data []byte, sink func(export.Chunk) error) error {
	for at := int64(0); at < e.Length; {
		end := blockEnd(e, at)
		zeroes := sparse.IsZero(data[at:end])
		for end < e.Length {
			next := blockEnd(e, end)
			if !zeroes && next-at > chunkBytes {
				break
			}
			if sparse.IsZero(data[end:next]) != zeroes {
				break
			}
			end = next
		}
		chunk := export.Chunk{Extent: extent.Extent{Offset: e.Offset + at, Length: end - at}}
		if !zeroes {
			chunk.Data = data[at:end]
			chunk.Checksum = export.Checksum(chunk.Data)
		}
		if err := sink(chunk); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// blockEnd returns where the aligned block that has the byte at ends, relative to e.
func blockEnd(e extent.Extent, at int64) int64 {
	return min(at+zeroBlock-(e.Offset+at)%zeroBlock, e.Length)
}
