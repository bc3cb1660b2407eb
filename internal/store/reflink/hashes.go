package reflink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

const pieceBytes = disk.PieceBytes

// hashes are those of an image: of each piece, so that a bad one can be fetched from another copy, and of all.
type hashes struct {
	pieces [][sha256.Size]byte
	all    [sha512.Size]byte
	all256 [sha256.Size]byte // of all, too, if it was wanted; it is not written to the disk
}

// hashFile reads a file that was just cloned: nothing of it is in the page cache, so this is what the disk has. wanted is
// the checksum that it must have, which may be a SHA-256, or nothing.
func hashFile(ctx context.Context, path, wanted string) (h hashes, err error) {
	f, err := os.Open(path)
	if err != nil {
		return hashes{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return hashes{}, err
	}
	// The hashes of a large image take much memory, and a slice that grows as much again.
	h.pieces = make([]disk.PieceHash, 0, (info.Size()+pieceBytes-1)/pieceBytes)
	return hashReader(ctx, f, h.pieces, isSHA256(wanted))
}

// matchPieces reads a file that was just cloned, as hashFile does, and compares it with the hashes that its pieces must
// have. That takes as many processors as there are, and no hash of all, which is the slowest.
func matchPieces(ctx context.Context, path string, size int64, seal disk.Seal) (h hashes, err error) {
	want := (size + pieceBytes - 1) / pieceBytes
	all, err := hex.DecodeString(seal.Checksum)
	if err != nil || len(all) != sha512.Size || int64(len(seal.Pieces)) != want {
		return hashes{}, errclass.Errorf(errclass.Invalid,
			"%d hashes of pieces with the checksum %.140q: use %d with the SHA-512 of all", len(seal.Pieces), seal.Checksum,
			want)
	}
	f, err := os.Open(path)
	if err != nil {
		return hashes{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
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
			if _, err := f.ReadAt(piece, offset); err != nil {
				return err
			}
			if hashPiece(piece) != seal.Pieces[i] {
				return errclass.Errorf(errclass.Corrupt, "MiB %d is not what it must be", i)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return hashes{}, err
	}
	return hashes{pieces: seal.Pieces, all: [sha512.Size]byte(all)}, nil
}

var zeroPiece [pieceBytes]byte

// hashZeroPiece returns the hash of a piece of zeroes. It computes it once, when the first such piece is read: most
// processes that have this package never read one.
var hashZeroPiece = sync.OnceValue(func() disk.PieceHash { return sha256.Sum256(zeroPiece[:]) })

// hashPiece returns the hash of a piece.
func hashPiece(piece []byte) disk.PieceHash {
	if bytes.Equal(piece, zeroPiece[:]) {
		return hashZeroPiece()
	}
	return sha256.Sum256(piece)
}

// hashReader hashes all of r, and appends the hashes of its pieces to pieces. The hash of all is the slowest: it has a
// goroutine of its own, beside that of the pieces. The SHA-256 of all is computed only if it is wanted.
func hashReader(
	ctx context.Context, r io.Reader, pieces []disk.PieceHash, with256 bool,
) (h hashes, err error) {
	h.pieces = pieces
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
			return hashes{}, err
		}
		buffer := <-free
		n, err := io.ReadFull(r, buffer)
		piece := buffer[:n]
		if n > 0 {
			read <- piece // it comes back to free, from which only this goroutine takes
			h.pieces = append(h.pieces, hashPiece(piece))
			if with256 {
				_, _ = all256.Write(piece)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return h, nil
		}
		if err != nil {
			return hashes{}, err
		}
	}
}

func (h hashes) checksum() string { return hex.EncodeToString(h.all[:]) }

// matchChecksum returns an error of class Corrupt if the data has not the checksum that it must have, if there is one.
func (h hashes) matchChecksum(wanted string) error {
	name, found := "SHA-512", h.checksum()
	if isSHA256(wanted) {
		name, found = "SHA-256", hex.EncodeToString(h.all256[:])
	}
	if wanted == "" || wanted == found {
		return nil
	}
	return &disk.ChecksumError{Algorithm: name, Found: found, Wanted: wanted}
}

// encodeHashes returns the content of the file hashes: the SHA-256 of each piece in order, and then the SHA-512 of all.
func (h hashes) encodeHashes() []byte {
	out := make([]byte, 0, len(h.pieces)*sha256.Size+sha512.Size)
	for _, p := range h.pieces {
		out = append(out, p[:]...)
	}
	return append(out, h.all[:]...)
}

// decodeHashes reads the content of the file hashes of an image.
func decodeHashes(data []byte, image entry) ([]disk.PieceHash, error) {
	pieces := (image.Bytes + pieceBytes - 1) / pieceBytes
	if int64(len(data)) != pieces*sha256.Size+sha512.Size {
		return nil, fmt.Errorf("%w: %d bytes of hashes for %d pieces", errclass.Corrupt, len(data), pieces)
	}
	if all := hex.EncodeToString(data[pieces*sha256.Size:]); all != image.Checksum {
		return nil, fmt.Errorf("%w: the hashes are those of %s, not of %s", errclass.Corrupt, all, image.Checksum)
	}
	out := make([]disk.PieceHash, pieces)
	for i := range out {
		out[i] = disk.PieceHash(data[i*sha256.Size:])
	}
	return out, nil
}

// Pieces implements [disk.Disk].
func (d *Disk) Pieces(ctx context.Context, name disk.Name) ([]disk.PieceHash, error) {
	pieces, err := d.readPieces(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the hashes of %q: %w", name, err)
	}
	return pieces, nil
}

func (d *Disk) readPieces(ctx context.Context, name disk.Name) (_ []disk.PieceHash, err error) {
	l, err := d.openLease(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if l.object.Kind != disk.KindImage {
		return nil, errclass.Errorf(errclass.Invalid, "it is no image, but a %s", l.object.Kind)
	}
	data, err := os.ReadFile(filepath.Join(d.dir, l.object.group, hashesFile))
	if err != nil {
		return nil, err
	}
	return decodeHashes(data, l.object.entry)
}

// ReadPiece implements [disk.Disk].
func (d *Disk) ReadPiece(ctx context.Context, name disk.Name, uid disk.UID, piece int, p []byte) error {
	if err := d.readPiece(ctx, name, uid, piece, p); err != nil {
		return fmt.Errorf("read MiB %d of %q: %w", piece, name, err)
	}
	return nil
}

func (d *Disk) readPiece(ctx context.Context, name disk.Name, uid disk.UID, piece int, p []byte) (err error) {
	l, err := d.leaseAny(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	o := l.object
	switch offset := int64(piece) * pieceBytes; {
	case o.UID != uid:
		return errclass.Errorf(errclass.NotFound, "it has the UID %s, not %s", o.UID, uid)
	case o.Kind != disk.KindImage:
		return errclass.Errorf(errclass.Invalid, "it is no image, but a %s", o.Kind)
	case piece < 0 || offset >= o.Bytes || int64(len(p)) != min(pieceBytes, o.Bytes-offset):
		return errclass.Errorf(errclass.Invalid, "an image of %d bytes has no such piece of %d bytes", o.Bytes, len(p))
	}
	data, err := os.ReadFile(filepath.Join(d.dir, o.group, hashesFile))
	if err != nil {
		return err
	}
	pieces, err := decodeHashes(data, o.entry)
	if err != nil {
		return err
	}
	f, err := os.Open(l.Path())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.ReadAt(p, int64(piece)*pieceBytes); err != nil {
		return err
	}
	if hashPiece(p) != pieces[piece] {
		return errclass.Errorf(errclass.Corrupt, "it is not what was sealed")
	}
	return nil
}
