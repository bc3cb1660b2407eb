package piecehash_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
	"github.com/varvebackup/varve/internal/store/disk/piecehash"
)

// More pieces than there are buffers, with zeroes among them, and an end in the middle of one.
func TestHashes_matchOnlyTheirData(t *testing.T) {
	t.Parallel()
	data := disktest.Noise(1, 13*disk.PieceBytes/2)
	clear(data[disk.PieceBytes : 3*disk.PieceBytes])
	sum256 := sha256.Sum256(data)
	for _, wanted := range []string{"", disktest.Checksum(data), hex.EncodeToString(sum256[:])} {
		with256 := disk.IsSHA256(wanted)
		h, err := piecehash.Read(t.Context(), bytes.NewReader(data), int64(len(data)), wanted)
		if err != nil || len(h.Pieces) != 7 || cap(h.Pieces) != 7 || h.Checksum() != disktest.Checksum(data) {
			t.Fatal(err, len(h.Pieces), h.Checksum())
		}
		for i, piece := range slices.Collect(slices.Chunk(data, disk.PieceBytes)) {
			if h.Pieces[i] != sha256.Sum256(piece) {
				t.Errorf("the hash of piece %d is another one", i)
			}
		}
		if err := h.MatchChecksum(disktest.Checksum(data)); err != nil {
			t.Error(err)
		}
		if err := h.MatchChecksum(hex.EncodeToString(sum256[:])); (err == nil) != with256 {
			t.Errorf("with the SHA-256 of all %t: %v", with256, err)
		}
		if err := h.MatchChecksum(disktest.Checksum(data[1:])); !errors.Is(err, errclass.Corrupt) {
			t.Error(err)
		}
	}
}

// A reader that fails ends the hashes, and leaves no goroutine behind that has the buffers.
func TestHashes_endWithTheirReader(t *testing.T) {
	t.Parallel()
	broken := io.MultiReader(bytes.NewReader(make([]byte, 9*disk.PieceBytes)), iotest.ErrReader(errclass.Transient))
	if _, err := piecehash.Read(t.Context(), broken, 9*disk.PieceBytes, ""); !errors.Is(err, errclass.Transient) {
		t.Errorf("error %v", err)
	}
}
