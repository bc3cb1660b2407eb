package repository

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

// blockWriter stores blocks of one size. It is safe for concurrent use.
type blockWriter struct {
	w          repo.RepositoryWriter
	geometry   geometry
	compressor compression.Name

	mu    sync.Mutex
	zeros map[int64]object.ID // by length
}

func newBlockWriter(w repo.RepositoryWriter, g geometry, compressor string) *blockWriter {
	return &blockWriter{w: w, geometry: g, compressor: compression.Name(compressor), zeros: map[int64]object.ID{}}
}

// write stores data, which is one block.
func (b *blockWriter) write(ctx context.Context, data []byte) (object.ID, error) {
	o := object.WriterOptions{Description: "BLOCK", Splitter: blockSizes[b.geometry.block]}
	if b.compressor != "" && compressible(data) {
		o.Compressor = b.compressor
	}
	id, err := writeObject(ctx, b.w, data, o)
	if err != nil {
		return object.EmptyID, fmt.Errorf("store a block: %w", err)
	}
	return id, nil
}

// zero returns the object of a block of length zeroes, and stores it on first use.
func (b *blockWriter) zero(ctx context.Context, length int64) (object.ID, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id, ok := b.zeros[length]; ok {
		return id, nil
	}
	id, err := b.write(ctx, make([]byte, length))
	if err != nil {
		return object.EmptyID, err
	}
	b.zeros[length] = id
	return id, nil
}

// probeBytes is the length of each sample that compressible tries: at the beginning, in the middle and at the end of a block.
const probeBytes = 4 * kib

// compressible guesses from samples whether data compresses. Compressing in vain costs more than hashing and encrypting together.
func compressible(data []byte) bool {
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

var zeroes [64 * kib]byte

// isZero says whether every byte of data is zero.
func isZero(data []byte) bool {
	for len(data) > len(zeroes) {
		if !bytes.Equal(data[:len(zeroes)], zeroes[:]) {
			return false
		}
		data = data[len(zeroes):]
	}
	return bytes.Equal(data, zeroes[:len(data)])
}
