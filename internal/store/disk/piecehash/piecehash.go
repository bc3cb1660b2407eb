// Package piecehash has the hashes of an image's data: one of each piece, so that a bad one is found and fetched from
// another copy, and one of all. They are the same on every disk, and so is the form in which disks keep them.
package piecehash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

const pieceBytes = disk.PieceBytes

// Hashes are those of an image: of each piece, and of all.
type Hashes struct {
	Pieces []disk.PieceHash
	all    [sha512.Size]byte
	all256 [sha256.Size]byte // of all, too, if it was wanted; it is not written to the disk
}

// Match reads what is to be sealed, and compares it with the hashes that its pieces must have. That takes as many
// processors as there are, and no hash of all, which is the slowest. r is read by several goroutines.
func Match(ctx context.Context, r io.ReaderAt, size int64, seal disk.Seal) (Hashes, error) {
	want := disk.CountPieces(size)
	all, err := hex.DecodeString(seal.Checksum)
	if err != nil || len(all) != sha512.Size || len(seal.Pieces) != want {
		return Hashes{}, errclass.Errorf(errclass.Invalid,
			"%d hashes of pieces with the checksum %.140q: use %d with the SHA-512 of all", len(seal.Pieces), seal.Checksum,
			want)
	}
	buffers := sync.Pool{New: func() any { return new([pieceBytes]byte) }}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range seal.Pieces {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			buffer := buffers.Get().(*[pieceBytes]byte)
			defer buffers.Put(buffer)
			offset := int64(i) * pieceBytes
			piece := buffer[:min(pieceBytes, size-offset)]
			if _, err := r.ReadAt(piece, offset); err != nil {
				return err
			}
			if Sum(piece) != seal.Pieces[i] {
				return errclass.Errorf(errclass.Corrupt, "MiB %d is not what it must be", i)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return Hashes{}, err
	}
	return Hashes{Pieces: seal.Pieces, all: [sha512.Size]byte(all)}, nil
}

var zeroPiece [pieceBytes]byte

// sumZeroPiece returns the hash of a piece of zeroes. It computes it once, when the first such piece is read: most
// processes that have this package never read one.
var sumZeroPiece = sync.OnceValue(func() disk.PieceHash { return sha256.Sum256(zeroPiece[:]) })

// Sum returns the hash of a piece.
func Sum(piece []byte) disk.PieceHash {
	if bytes.Equal(piece, zeroPiece[:]) {
		return sumZeroPiece()
	}
	return sha256.Sum256(piece)
}

// Read hashes all of r, of about this size, which must have the checksum wanted: a SHA-512, a SHA-256 or nothing. The hash
// of all is the slowest: it has a goroutine of its own, beside that of the pieces. The SHA-256 of all is computed only if
// it is wanted.
func Read(ctx context.Context, r io.Reader, size int64, wanted string) (h Hashes, err error) {
	// The hashes of a large image take much memory, and a slice that grows as much again.
	h.Pieces = make([]disk.PieceHash, 0, disk.CountPieces(size))
	const buffers = 4
	free, read, ended := make(chan []byte, buffers), make(chan []byte, buffers), make(chan struct{})
	for range buffers {
		free <- make([]byte, pieceBytes)
	}
	all, all256 := sha512.New(), sha256.New()
	go func() {
		defer close(ended)
		for piece := range read {
			_, _ = all.Write(piece) // a hash returns no error
			free <- piece[:pieceBytes]
		}
	}()
	defer func() {
		close(read)
		<-ended
		if err == nil {
			h.all, h.all256 = [sha512.Size]byte(all.Sum(nil)), [sha256.Size]byte(all256.Sum(nil))
		}
	}()
	for {
		if err := ctx.Err(); err != nil {
			return Hashes{}, err
		}
		buffer := <-free
		n, err := io.ReadFull(r, buffer)
		piece := buffer[:n]
		if n > 0 {
			read <- piece // it comes back to free, from which only this goroutine takes
			h.Pieces = append(h.Pieces, Sum(piece))
			if disk.IsSHA256(wanted) {
				_, _ = all256.Write(piece)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return h, nil
		}
		if err != nil {
			return Hashes{}, err
		}
	}
}

// Checksum returns the SHA-512 of all in hexadecimal.
func (h Hashes) Checksum() string { return hex.EncodeToString(h.all[:]) }

// MatchChecksum returns an error of class Corrupt if the data has not the checksum that it must have, if there is one.
func (h Hashes) MatchChecksum(wanted string) error {
	name, found := "SHA-512", h.Checksum()
	if disk.IsSHA256(wanted) {
		name, found = "SHA-256", hex.EncodeToString(h.all256[:])
	}
	if wanted == "" || wanted == found {
		return nil
	}
	return &disk.ChecksumError{Algorithm: name, Found: found, Wanted: wanted}
}

// Encode returns the hashes as disks keep them: the SHA-256 of each piece in order, and then the SHA-512 of all.
func (h Hashes) Encode() []byte {
	out := make([]byte, 0, len(h.Pieces)*sha256.Size+sha512.Size)
	for _, p := range h.Pieces {
		out = append(out, p[:]...)
	}
	return append(out, h.all[:]...)
}

// EncodedBytes returns how many bytes the hashes of an image of some bytes take.
func EncodedBytes(imageBytes int64) int64 {
	return int64(disk.CountPieces(imageBytes))*sha256.Size + sha512.Size
}

// Decode returns the hashes of the pieces of an image of some bytes with a checksum from what Encode returned. An error
// is of class Corrupt.
func Decode(data []byte, imageBytes int64, checksum string) ([]disk.PieceHash, error) {
	pieces := disk.CountPieces(imageBytes)
	if int64(len(data)) != EncodedBytes(imageBytes) {
		return nil, fmt.Errorf("%w: %d bytes of hashes for %d pieces", errclass.Corrupt, len(data), pieces)
	}
	if all := hex.EncodeToString(data[pieces*sha256.Size:]); all != checksum {
		return nil, fmt.Errorf("%w: the hashes are those of %s, not of %s", errclass.Corrupt, all, checksum)
	}
	out := make([]disk.PieceHash, pieces)
	for i := range out {
		out[i] = disk.PieceHash(data[i*sha256.Size:])
	}
	return out, nil
}
