package tunnel

import (
	"hash/crc32"
	"math/bits"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// shiftPiece is what maxPieceBytes zero bytes do to the CRC-32 of what is before them: column i is what becomes of bit i.
// The CRC of a concatenation is the first part's CRC, shifted by the second part's length, xor the second part's.
var shiftPiece = shiftBytes(maxPieceBytes)

// shiftBytes returns the matrix for n zero bytes; n is a power of two. It squares the matrix for one zero bit.
func shiftBytes(n int) [32]uint32 {
	matrix := [32]uint32{0: crc32.IEEE}
	for i := 1; i < 32; i++ {
		matrix[i] = 1 << (i - 1)
	}
	for range bits.TrailingZeros(uint(n)) + 3 {
		var square [32]uint32
		for i := range square {
			square[i] = shiftChecksum(&matrix, matrix[i])
		}
		matrix = square
	}
	return matrix
}

func shiftChecksum(matrix *[32]uint32, sum uint32) uint32 {
	var shifted uint32
	for ; sum != 0; sum &= sum - 1 {
		shifted ^= matrix[bits.TrailingZeros32(sum)]
	}
	return shifted
}

// splitChunk calls send with the pieces of a chunk, each of which has its own checksum. They follow from the data as it
// is now; before the last piece is sent, splitChunk compares what they amount to with the chunk's checksum. So what
// changed since the disk was read is never taken for sound, although each piece fits its checksum.
func splitChunk(c export.Chunk, send func(export.Chunk) error) error {
	if len(c.Data) <= maxPieceBytes {
		return send(c)
	}
	// The first piece is the odd one, so that all others are shifted by maxPieceBytes.
	n := (len(c.Data)-1)%maxPieceBytes + 1
	var whole uint32
	for at := 0; at < len(c.Data); at, n = at+n, maxPieceBytes {
		part := c.Data[at : at+n]
		sum := export.Checksum(part)
		whole = sum ^ shiftChecksum(&shiftPiece, whole)
		if at+n == len(c.Data) && whole != c.Checksum {
			return errclass.Errorf(errclass.Corrupt, "the data at %v changed after it was read", c.Extent)
		}
		piece := export.Chunk{Extent: extent.Extent{Offset: c.Offset + int64(at), Length: int64(n)}, Data: part, Checksum: sum}
		if err := send(piece); err != nil {
			return err
		}
	}
	return nil
}
