package download

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"io"
	"sync/atomic"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/handover"
)

// Image is what the cluster says of an image.
type Image struct {
	// Bytes is its size.
	Bytes int64
	// Checksum is its SHA-512.
	Checksum string
	// PiecesChecksum is disk.SumPieces of its hashes. It is empty if the cluster does not know it.
	PiecesChecksum string
}

// Destination is where an image goes. Only one goroutine uses it. Its errors are those of this computer: another copy of
// the image does not help.
type Destination interface {
	// Load fills p with what an earlier run has written at an offset. What is missing is zero. It returns false if there
	// is nothing.
	Load(p []byte, offset int64) (bool, error)
	// Begin drops everything from an offset on.
	Begin(offset int64) error
	// WritePiece writes the piece that begins at an offset, behind all others.
	WritePiece(p []byte, offset int64) error
	// Finish makes what was written the result. It has so many bytes.
	Finish(bytes int64) error
	// Discard deletes what was written, because it is wrong.
	Discard() error
}

// Transfer is an image on its way. One goroutine uses it, but Done may be called by any.
type Transfer struct {
	image  Image
	to     Destination
	hashes []disk.PieceHash
	zeroes Zeroes
	sum    hash.Hash // of the pieces before next
	next   int
	done   atomic.Int64
	buffer []byte
}

// NewTransfer begins to bring an image to its destination.
func NewTransfer(image Image, to Destination) (*Transfer, error) {
	if image.Bytes <= 0 || image.Bytes > handover.MaxImageBytes || len(image.Checksum) != hex.EncodedLen(sha512.Size) {
		return nil, errclass.Errorf(errclass.Invalid, "the image has %d bytes and the checksum %.140q: it is not ready",
			image.Bytes, image.Checksum)
	}
	return &Transfer{
		image: image, to: to, zeroes: NewZeroes(image.Bytes), sum: sha512.New(), buffer: make([]byte, disk.PieceBytes),
	}, nil
}

// Done returns how many bytes from the first one on are there.
func (t *Transfer) Done() int64 { return t.done.Load() }

// CountPieces returns how many pieces the image has.
func (t *Transfer) CountPieces() int { return disk.CountPieces(t.image.Bytes) }

// HasHashes says whether Begin was called.
func (t *Transfer) HasHashes() bool { return t.hashes != nil }

// Begin takes the hashes of the image's pieces, and keeps the pieces that an earlier run has written, up to the first
// that is missing or wrong. An error is Corrupt if the hashes are not those of the image.
func (t *Transfer) Begin(ctx context.Context, hashes []disk.PieceHash) error {
	if len(hashes) != t.CountPieces() {
		return errclass.Errorf(errclass.Corrupt, "the copy has %d MiB, and the image %d", len(hashes),
			t.CountPieces())
	}
	if sum := disk.SumPieces(hashes); t.image.PiecesChecksum != "" && sum != t.image.PiecesChecksum {
		return errclass.Errorf(errclass.Corrupt, "the hashes of the copy are those of %.16s…, and the image's of %.16s…", sum,
			t.image.PiecesChecksum)
	}
	t.sum.Reset() // an earlier call may have failed
	t.next = 0
	t.done.Store(0)
	for i, want := range hashes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := t.pieceBuffer(i)
		has, err := t.to.Load(p, offsetOf(i))
		if err != nil {
			return err
		}
		if !has || sha256.Sum256(p) != want {
			break
		}
		t.countPiece(p)
	}
	if err := t.to.Begin(offsetOf(t.next)); err != nil {
		return err
	}
	t.hashes = hashes
	return nil
}

func offsetOf(piece int) int64 { return int64(piece) * disk.PieceBytes }

// pieceBuffer returns room for a piece.
func (t *Transfer) pieceBuffer(i int) []byte { return t.buffer[:PieceLength(t.image.Bytes, i)] }

// countPiece counts the next piece as there.
func (t *Transfer) countPiece(p []byte) {
	_, _ = t.sum.Write(p) // a hash returns no error
	t.next++
	t.done.Store(min(offsetOf(t.next), t.image.Bytes))
}

// Next writes the pieces that are zero, and returns the first one that has to be sent. It returns false if nothing is
// missing.
func (t *Transfer) Next(ctx context.Context) (piece int, missing bool, err error) {
	for t.next < len(t.hashes) && t.zeroes.Has(t.next, t.hashes[t.next]) {
		if ctx.Err() != nil {
			return 0, false, context.Cause(ctx)
		}
		p := t.pieceBuffer(t.next)
		clear(p)
		if err := t.to.WritePiece(p, offsetOf(t.next)); err != nil {
			return 0, false, err
		}
		t.countPiece(p)
	}
	return t.next, t.next < len(t.hashes), nil
}

// Receive reads what a store sends from the piece on that Next has returned. An error is Transient if the data ends too
// early, and Corrupt if it is wrong. What was right before is kept.
func (t *Transfer) Receive(ctx context.Context, data io.Reader) error {
	for {
		i, missing, err := t.Next(ctx)
		if err != nil || !missing {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := t.pieceBuffer(i)
		if _, err := io.ReadFull(data, p); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return errclass.Errorf(errclass.Transient, "the connection broke at MiB %d: %w", i, err)
		}
		if sha256.Sum256(p) != t.hashes[i] {
			return errclass.Errorf(errclass.Corrupt, "MiB %d of the copy is not what it must be", i)
		}
		if err := t.to.WritePiece(p, offsetOf(i)); err != nil {
			return err
		}
		t.countPiece(p)
	}
}

// Finish compares everything with the image's checksum, and makes it the result. What is wrong is deleted.
func (t *Transfer) Finish() error {
	if got := hex.EncodeToString(t.sum.Sum(nil)); got != t.image.Checksum {
		wrong := &disk.ChecksumError{Algorithm: "SHA-512", Found: got, Wanted: t.image.Checksum}
		if err := t.to.Discard(); err != nil {
			return errclass.Errorf(errclass.Corrupt, "%w; to delete it failed: %w", wrong, err)
		}
		return wrong
	}
	return t.to.Finish(t.image.Bytes)
}
