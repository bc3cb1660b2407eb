package imagehttp

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/download"
	"github.com/varvebackup/varve/internal/store/peer"
)

// hashesAtOnce is how many hashes are written at once.
const hashesAtOnce = 32 << 10

// lease is a copy that cannot be deleted until endLease.
type lease struct {
	copy   peer.Copy
	bytes  int64
	pieces []disk.PieceHash
	file   *os.File
	held   disk.Lease
	// release gives back the room for the hashes.
	release func()
}

// leaseCopy leases the copy that a request names.
func (s *server) leaseCopy(r *http.Request) (_ *lease, err error) {
	c := peer.Copy{Image: r.PathValue("image"), UUID: r.PathValue("uuid"), DiskUUID: r.PathValue("disk")}
	d, image, err := peer.FindImage(r.Context(), s.o.Disks, c)
	if err != nil {
		return nil, err
	}
	weight := min(int64(disk.CountPieces(image.Bytes)), maxPieces)
	if !s.pieces.TryAcquire(weight) {
		return nil, errclass.Errorf(errclass.Transient, "other large images are being downloaded: try again later")
	}
	release := func() { s.pieces.Release(weight) }
	defer func() {
		if err != nil {
			release()
		}
	}()
	pieces, err := d.Pieces(r.Context(), image.Name)
	if errors.Is(err, errclass.Corrupt) {
		s.noteDamage(r.Context(), c, err.Error())
	}
	if err != nil {
		return nil, fmt.Errorf("read the hashes of image %s: %w", c.Image, err)
	}
	if len(pieces) != disk.CountPieces(image.Bytes) {
		return nil, errclass.Errorf(errclass.Corrupt, "the copy of image %s has %d hashes for %d bytes", c.Image,
			len(pieces), image.Bytes)
	}
	held, err := d.Open(r.Context(), image.Name)
	if err != nil {
		return nil, fmt.Errorf("open the copy of image %s: %w", c.Image, err)
	}
	file, err := os.Open(held.Path())
	if err != nil {
		return nil, errors.Join(err, held.Close())
	}
	return &lease{copy: c, bytes: image.Bytes, pieces: pieces, file: file, held: held, release: release}, nil
}

// endLease gives back the copy.
func (l *lease) endLease() error {
	defer l.release()
	return errors.Join(l.file.Close(), l.held.Close())
}

func (s *server) noteDamage(ctx context.Context, c peer.Copy, why string) {
	s.o.NoteDamage(context.WithoutCancel(ctx), c, why)
}

// sendHashes sends the hashes of the pieces, one after the other.
func (s *server) sendHashes(w http.ResponseWriter, r *http.Request) (err error) {
	l, err := s.leaseCopy(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.endLease()) }()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(l.pieces)*sha256.Size))
	buffer := make([]byte, 0, hashesAtOnce*sha256.Size)
	for i := range l.pieces {
		buffer = append(buffer, l.pieces[i][:]...)
		if len(buffer) < cap(buffer) && i < len(l.pieces)-1 {
			continue
		}
		if err := s.writePart(r.Context(), w, buffer); err != nil {
			return err
		}
		buffer = buffer[:0]
	}
	return nil
}

// writePart writes a part of a response, and waits for its reader for a while.
func (s *server) writePart(ctx context.Context, w http.ResponseWriter, p []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	deadline := s.o.Clock.Now().Add(writePatience)
	if err := http.NewResponseController(w).SetWriteDeadline(deadline); err != nil {
		return fmt.Errorf("limit the time of the reader: %w", err)
	}
	_, err := w.Write(p)
	return err
}

// sendData sends the pieces from one on, without those that are zero.
func (s *server) sendData(w http.ResponseWriter, r *http.Request) (err error) {
	l, err := s.leaseCopy(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.endLease()) }()
	from, err := strconv.Atoi(r.URL.Query().Get(download.FromQuery))
	if err != nil || from < 0 || from >= len(l.pieces) {
		return errclass.Errorf(errclass.Invalid, "%s=%q: the image has the pieces 0 to %d", download.FromQuery,
			r.URL.Query().Get(download.FromQuery), len(l.pieces)-1)
	}
	s.o.Logger.Info("a user downloads an image", "image", l.copy.Image, "uuid", l.copy.UUID, "disk", l.copy.DiskUUID,
		"fromMiB", from)
	zeroes := download.NewZeroes(l.bytes)
	length := int64(0)
	for i := from; i < len(l.pieces); i++ {
		if !zeroes.Has(i, l.pieces[i]) {
			length += int64(download.PieceLength(l.bytes, i))
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	buffer := make([]byte, disk.PieceBytes)
	for i := from; i < len(l.pieces); i++ {
		if zeroes.Has(i, l.pieces[i]) {
			continue
		}
		p := buffer[:download.PieceLength(l.bytes, i)]
		if err := s.readPiece(r.Context(), l, i, p); err != nil {
			return err
		}
		if err := s.writePart(r.Context(), w, p); err != nil {
			return err
		}
	}
	return nil
}

// readPiece reads a piece, which must have its hash.
func (s *server) readPiece(ctx context.Context, l *lease, i int, p []byte) error {
	if _, err := l.file.ReadAt(p, int64(i)*disk.PieceBytes); err != nil {
		return fmt.Errorf("read MiB %d of image %s: %w", i, l.copy.Image, err)
	}
	if sha256.Sum256(p) == l.pieces[i] {
		return nil
	}
	why := fmt.Sprintf("MiB %d is not what was sealed", i)
	s.noteDamage(ctx, l.copy, why)
	return errclass.Errorf(errclass.Corrupt, "the copy of image %s: %s", l.copy.Image, why)
}
