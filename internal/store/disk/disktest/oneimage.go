package disktest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// HashPieces returns the hashes of the pieces of data.
func HashPieces(data []byte) (pieces []disk.PieceHash) {
	for piece := range slices.Chunk(data, disk.PieceBytes) {
		pieces = append(pieces, sha256.Sum256(piece))
	}
	return pieces
}

// OneImage is a disk with one image, whose data is in a file. It counts leases. Methods that it does not have panic.
type OneImage struct {
	disk.Disk

	Name  disk.Name
	UID   disk.UID
	Data  []byte
	State disk.State
	// Path is the file. A test may give it other bytes than Data.
	Path string

	mu     sync.Mutex
	leases int
}

// NewOneImage returns a disk with an image of data. Its file has holes where pieces are zero.
func NewOneImage(t *testing.T, name disk.Name, uid disk.UID, data []byte) *OneImage {
	t.Helper()
	d := &OneImage{
		Name: name, UID: uid, Data: data, State: disk.StateReady, Path: filepath.Join(t.TempDir(), "data"),
	}
	f, err := os.Create(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	err = f.Truncate(int64(len(data)))
	for offset := 0; offset < len(data); offset += disk.PieceBytes {
		piece := data[offset:min(len(data), offset+disk.PieceBytes)]
		if bytes.Count(piece, []byte{0}) < len(piece) {
			_, writeErr := f.WriteAt(piece, int64(offset))
			err = errors.Join(err, writeErr)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return d
}

// List implements [disk.Disk].
func (d *OneImage) List(context.Context) ([]disk.Object, error) {
	return []disk.Object{{
		Name: d.Name, UID: d.UID, Kind: disk.KindImage, Bytes: int64(len(d.Data)), State: d.State, Checksum: Checksum(d.Data),
	}}, nil
}

// Pieces implements [disk.Disk].
func (d *OneImage) Pieces(context.Context, disk.Name) ([]disk.PieceHash, error) {
	return HashPieces(d.Data), nil
}

// ReadPiece implements [disk.Disk]. A piece that is longer than the image's is damaged.
func (d *OneImage) ReadPiece(_ context.Context, name disk.Name, uid disk.UID, piece int, p []byte) error {
	switch offset := piece * disk.PieceBytes; {
	case name != d.Name || uid != d.UID:
		return errclass.Errorf(errclass.NotFound, "no %s", name)
	case offset+len(p) > len(d.Data):
		return errclass.Errorf(errclass.Corrupt, "MiB %d is not what was sealed", piece)
	default:
		copy(p, d.Data[offset:])
	}
	return nil
}

type fileLease struct{ d *OneImage }

// Open implements [disk.Disk].
func (d *OneImage) Open(context.Context, disk.Name) (disk.Lease, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leases++
	return fileLease{d}, nil
}

func (l fileLease) Path() string { return l.d.Path }

func (l fileLease) Close() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.leases--
	return nil
}

// CountLeases returns how many leases are open.
func (d *OneImage) CountLeases() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leases
}
