package table

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/compression"
	"github.com/kopia/kopia/repo/object"
)

// BlockWriter stores blocks of one size. It is safe for concurrent use.
type BlockWriter struct {
	w          repo.RepositoryWriter
	geometry   Geometry
	compressor compression.Name

	mu    sync.Mutex
	zeros map[int64]object.ID // by length
}

// NewBlockWriter returns a writer of a disk's blocks. compressor is the name of one of kopia's compressors, or "".
func NewBlockWriter(w repo.RepositoryWriter, g Geometry, compressor string) *BlockWriter {
	return &BlockWriter{w: w, geometry: g, compressor: compression.Name(compressor), zeros: map[int64]object.ID{}}
}

// Write stores data, which is one block.
func (b *BlockWriter) Write(ctx context.Context, data []byte) (object.ID, error) {
	o := object.WriterOptions{Description: "BLOCK", Splitter: blockSizes[b.geometry.BlockBytes]}
	if b.compressor != "" && isCompressible(data) {
		o.Compressor = b.compressor
	}
	id, err := WriteObject(ctx, b.w, data, o)
	if err != nil {
		return object.EmptyID, fmt.Errorf("store a block: %w", err)
	}
	return id, nil
}

// WriteZeroes returns the object of a block of length zeroes, and stores it on first use.
func (b *BlockWriter) WriteZeroes(ctx context.Context, length int64) (object.ID, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id, ok := b.zeros[length]; ok {
		return id, nil
	}
	id, err := b.Write(ctx, make([]byte, length))
	if err != nil {
		return object.EmptyID, err
	}
	b.zeros[length] = id
	return id, nil
}

// IsZeroBlock says whether an entry is the block of zeroes that was stored for its length.
func (b *BlockWriter) IsZeroBlock(e object.IndirectObjectEntry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.zeros[e.Length] == e.Object
}

// probeBytes is the length of each sample that compressible tries: at the beginning, in the middle and at the end of a block.
const probeBytes = 4 << 10

// isCompressible guesses from samples whether data compresses. Compressing in vain costs more than hashing and encrypting together.
func isCompressible(data []byte) bool {
	if len(data) < 8*probeBytes {
		return true
	}
	var out [probeBytes + probeBytes/2]byte
	for _, at := range []int{0, len(data) / 2, len(data) - probeBytes} {
		sample := data[at : at+probeBytes]
		if len(s2.Encode(out[:], sample)) < probeBytes-probeBytes/16 {
			return true
		}
	}
	return false
}

var zeroes [64 << 10]byte

// IsZero says whether every byte of data is zero.
func IsZero(data []byte) bool {
	for len(data) > len(zeroes) {
		if !bytes.Equal(data[:len(zeroes)], zeroes[:]) {
			return false
		}
		data = data[len(zeroes):]
	}
	return bytes.Equal(data, zeroes[:len(data)])
}
