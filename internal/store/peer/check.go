package peer

import (
	"crypto/sha256"
	"fmt"
	"io"
	"sync"

	"github.com/varvebackup/varve/internal/store/disk"
)

// pieceCheck compares the pieces of an image with their hashes before a reader gets the first byte of them, so that the
// copy's own store knows of damage. The reader gets bad pieces, too: it has the hashes, and refuses them by itself.
type pieceCheck struct {
	pieces  []disk.PieceHash
	bytes   int64 // of the image
	damaged func(why string)

	mu      sync.Mutex
	checked []bool
	buffer  []byte
}

func newPieceCheck(pieces []disk.PieceHash, bytes int64, damaged func(why string)) *pieceCheck {
	return &pieceCheck{pieces: pieces, bytes: bytes, damaged: damaged, checked: make([]bool, len(pieces))}
}

// checkRange checks the pieces of a range that were not checked before. One at a time is read, so that a lease takes
// memory for one piece. An error is one of reading.
func (c *pieceCheck) checkRange(image io.ReaderAt, offset, length int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := offset / disk.PieceBytes; i*disk.PieceBytes < offset+length && i < int64(len(c.pieces)); i++ {
		if c.checked[i] {
			continue
		}
		if c.buffer == nil {
			c.buffer = make([]byte, disk.PieceBytes)
		}
		begin := i * disk.PieceBytes
		p := c.buffer[:min(disk.PieceBytes, c.bytes-begin)]
		if _, err := image.ReadAt(p, begin); err != nil {
			return fmt.Errorf("read MiB %d of the image: %w", i, err)
		}
		c.checked[i] = true
		if sha256.Sum256(p) != c.pieces[i] {
			c.damaged(fmt.Sprintf("MiB %d is not what was sealed", i))
		}
	}
	return nil
}
