package mover

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/repository"
)

func TestStream_writesTheWholeDisk(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	sparse, sparseFile := backUpSparse(t, r)
	oddFile := writeFile(t, noise(1, 3*repository.DefaultBlockBytes+513))
	point, err := Backup(t.Context(), r, BackupRequest{History: r.Source("", "", "/odd"), Sources: []Source{{Name: "root", Location: oddFile}}})
	if err != nil {
		t.Fatal(err)
	}
	for want, d := range map[string]repository.Disk{sparseFile: sparse, oddFile: point.Disks[0]} {
		got := filepath.Join(t.TempDir(), "out")
		f, err := os.Create(got)
		if err != nil {
			t.Fatal(err)
		}
		var last Progress
		err = Stream(t.Context(), r, StreamRequest{Disk: d, To: f, Workers: 3, Progress: func(p Progress) { last = p }})
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		sameFiles(t, got, want)
		if last.ProcessedBytes != d.Bytes || last.TotalBytes != d.Bytes {
			t.Errorf("the last progress is %+v", last)
		}
	}
}

var errFull = errors.New("full")

// limitedWriter takes so many bytes, and then fails.
type limitedWriter struct{ left int }

func (w *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

func TestStream_endsWithItsWriterAndItsContext(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	d, _ := backUpSparse(t, r)
	if err := Stream(t.Context(), r, StreamRequest{Disk: d, To: &limitedWriter{left: sparseData}}); !errors.Is(err, errFull) {
		t.Errorf("a writer that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Stream(ctx, r, StreamRequest{Disk: d, To: &limitedWriter{left: 1 << 40}}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}
