package reflink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/piecehash"
)

const pieceBytes = disk.PieceBytes

// hashFile reads a file that was just cloned: nothing of it is in the page cache, so this is what the disk has. wanted is
// the checksum that it must have, which may be a SHA-256, or nothing.
func hashFile(ctx context.Context, path, wanted string) (h piecehash.Hashes, err error) {
	f, err := os.Open(path)
	if err != nil {
		return piecehash.Hashes{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return piecehash.Hashes{}, err
	}
	return piecehash.Read(ctx, f, info.Size(), wanted)
}

// matchPieces reads a file that was just cloned, as hashFile does, and compares it with the hashes that its pieces must
// have.
func matchPieces(ctx context.Context, path string, size int64, seal disk.Seal) (h piecehash.Hashes, err error) {
	f, err := os.Open(path)
	if err != nil {
		return piecehash.Hashes{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return piecehash.Match(ctx, f, size, seal)
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
	_, pieces, err := d.loadHashes(l.object)
	return pieces, err
}

// loadHashes returns the hashes of an image's pieces, and the file that has them.
func (d *Disk) loadHashes(o located) (encoded []byte, pieces []disk.PieceHash, err error) {
	if encoded, err = os.ReadFile(filepath.Join(d.dir, o.group, hashesFile)); err != nil {
		return nil, nil, err
	}
	pieces, err = piecehash.Decode(encoded, o.Bytes, o.Checksum)
	return encoded, pieces, err
}

// leaseImage leases an image, damaged or not. Errors are those of findImage.
func (d *Disk) leaseImage(ctx context.Context, name disk.Name, uid disk.UID) (*lease, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, err := d.findImage(ctx, name, uid)
	if err != nil {
		return nil, err
	}
	return d.leaseObject(o), nil
}

// ReadPiece implements [disk.Disk].
func (d *Disk) ReadPiece(ctx context.Context, name disk.Name, uid disk.UID, piece int, p []byte) error {
	if err := d.readPiece(ctx, name, uid, piece, p); err != nil {
		return fmt.Errorf("read MiB %d of %q: %w", piece, name, err)
	}
	return nil
}

func (d *Disk) readPiece(ctx context.Context, name disk.Name, uid disk.UID, piece int, p []byte) (err error) {
	l, err := d.leaseImage(ctx, name, uid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	o, offset := l.object, int64(piece)*pieceBytes
	if piece < 0 || offset >= o.Bytes || int64(len(p)) != min(pieceBytes, o.Bytes-offset) {
		return errclass.Errorf(errclass.Invalid, "an image of %d bytes has no such piece of %d bytes", o.Bytes, len(p))
	}
	_, pieces, err := d.loadHashes(o)
	if err != nil {
		return err
	}
	f, err := os.Open(l.Path())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.ReadAt(p, offset); err != nil {
		return err
	}
	if piecehash.Sum(p) != pieces[piece] {
		return errclass.Errorf(errclass.Corrupt, "it is not what was sealed")
	}
	return nil
}
