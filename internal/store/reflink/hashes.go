package reflink

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/varvebackup/varve/internal/errclass"
)

// pieceBytes is what a hash of an image's hashes covers.
const pieceBytes = 1 << 20

// hashes are those of an image: of each piece, so that a bad one can be fetched from another copy, and of all.
type hashes struct {
	pieces [][sha256.Size]byte
	all    [sha512.Size]byte
}

// hashFile reads a file that was just cloned: nothing of it is in the page cache, so this is what the disk has.
func hashFile(ctx context.Context, path string) (h hashes, err error) {
	f, err := os.Open(path)
	if err != nil {
		return hashes{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return hashReader(ctx, f)
}

func hashReader(ctx context.Context, r io.Reader) (hashes, error) {
	var h hashes
	all, buffer := sha512.New(), make([]byte, pieceBytes)
	for {
		if err := ctx.Err(); err != nil {
			return hashes{}, err
		}
		n, err := io.ReadFull(r, buffer)
		if n > 0 {
			h.pieces = append(h.pieces, sha256.Sum256(buffer[:n]))
			_, _ = all.Write(buffer[:n]) // a hash returns no error
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			h.all = [sha512.Size]byte(all.Sum(nil))
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
	if wanted == "" || wanted == h.checksum() {
		return nil
	}
	return fmt.Errorf("%w: its SHA-512 is %s, not %s", errclass.Corrupt, h.checksum(), wanted)
}

// encodeHashes returns the content of the file hashes: the SHA-256 of each piece in order, and then the SHA-512 of all.
func (h hashes) encodeHashes() []byte {
	out := make([]byte, 0, len(h.pieces)*sha256.Size+sha512.Size)
	for _, p := range h.pieces {
		out = append(out, p[:]...)
	}
	return append(out, h.all[:]...)
}
