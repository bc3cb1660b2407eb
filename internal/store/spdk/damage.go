package spdk

import (
	"context"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/piecehash"
)

// maxReasonBytes is how much is kept of why an image is damaged, so that it fits into an attribute.
const maxReasonBytes = 512

// Pieces implements [disk.Disk].
func (d *Disk) Pieces(ctx context.Context, name disk.Name) ([]disk.PieceHash, error) {
	pieces, err := d.readPieces(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the hashes of %q: %w", name, err)
	}
	return pieces, nil
}

func (d *Disk) readPieces(ctx context.Context, name disk.Name) (_ []disk.PieceHash, err error) {
	l, err := d.leaseIntact(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if l.object.Kind != disk.KindImage {
		return nil, errclass.Errorf(errclass.Invalid, "it is no image, but a %s", l.object.Kind)
	}
	encoded := make([]byte, piecehash.EncodedBytes(l.object.Bytes))
	data, err := d.openVolume(ctx, volumeName(roleSeal, l.object.UID), int64(len(encoded)))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	if _, err := data.ReadAt(encoded, 0); err != nil {
		return nil, err
	}
	return piecehash.Decode(encoded, l.object.Bytes, l.object.seal.Checksum)
}

// MarkDamaged implements [disk.Disk].
func (d *Disk) MarkDamaged(ctx context.Context, name disk.Name, uid disk.UID, why string) error {
	if err := d.markImage(ctx, name, uid, why); err != nil {
		return fmt.Errorf("mark %q as damaged: %w", name, err)
	}
	return nil
}

func (d *Disk) markImage(ctx context.Context, name disk.Name, uid disk.UID, why string) error {
	v, err := d.lockView(ctx)
	if err != nil {
		return err
	}
	defer d.unlock()
	o, err := v.findImage(name, uid)
	if err != nil || o.seal.Damaged != "" {
		return err
	}
	if why == "" {
		why = "no reason was given"
	}
	o.seal.Damaged = why[:min(len(why), maxReasonBytes)]
	return d.writeAttribute(ctx, v, volumeName(roleSeal, uid), o.seal)
}

// ReadPiece implements [disk.Disk]. It returns ErrUnsupported for every image: none is repaired here, so that none asks for
// pieces.
func (*Disk) ReadPiece(_ context.Context, name disk.Name, _ disk.UID, piece int, _ []byte) error {
	return fmt.Errorf("read MiB %d of %q: %w", piece, name, ErrUnsupported)
}

// Repair implements [disk.Disk]. It returns ErrUnsupported for every image.
func (d *Disk) Repair(ctx context.Context, name disk.Name, uid disk.UID, _ disk.FetchPiece) error {
	v, err := d.lockView(ctx)
	if err == nil {
		_, err = v.findImage(name, uid)
		d.unlock()
	}
	if err == nil {
		err = errclass.Errorf(ErrUnsupported, "an image on a disk of SPDK cannot be changed: delete it, and copy it again")
	}
	return fmt.Errorf("repair %q: %w", name, err)
}
