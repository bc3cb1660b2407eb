package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/store/disk"
)

// Small holes of a piece are filled, because each would make one more extent. Large ones stay.
func TestWritePiece_fillsSmallHoles(t *testing.T) {
	t.Parallel()
	piece := bytes.Repeat([]byte("0123456789abcdef"), disk.PieceBytes/16)
	half := len(piece) / 2
	for at := 0; at < half; at += 8192 {
		clear(piece[at:][:4096])
	}
	clear(piece[half : half+256<<10])
	f, err := os.Create(filepath.Join(t.TempDir(), "head"))
	if err == nil {
		err = errors.Join(f.Truncate(disk.PieceBytes), writePiece(f, piece, 0, false))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(got, piece) {
		t.Error("what was written is not the piece", err)
	}
	if hole, err := f.Seek(0, unix.SEEK_HOLE); err != nil || hole != int64(half) {
		t.Errorf("a hole at %d: %v", hole, err)
	}
	if data, err := f.Seek(int64(half), unix.SEEK_DATA); err != nil || data != int64(half+256<<10) {
		t.Errorf("data at %d: %v", data, err)
	}
}
