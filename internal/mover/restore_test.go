package mover

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/verdict"
)

const (
	// regionBytes is the size of a region.
	regionBytes = repository.RegionBlocks * repository.DefaultBlockBytes
	// sparseBytes is the size of the disk of backUpSparse: two regions, the second smaller than the first. sparseData is
	// how much data each of them has.
	sparseBytes = regionBytes + 4<<20
	sparseData  = 3 << 20
)

// backUpSparse backs up a disk with some data in each of its regions, and returns the disk and the file that it was in.
func backUpSparse(tb testing.TB, r *repository.Repository) (stored repository.Disk, path string) {
	tb.Helper()
	path = writeFile(tb, nil)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	failed := []error{f.Truncate(sparseBytes)}
	for i := range 2 {
		_, err := f.WriteAt(noise(byte(i), sparseData), int64(i)*regionBytes)
		failed = append(failed, err)
	}
	if err := errors.Join(failed...); err != nil {
		tb.Fatal(err)
	}
	point, err := Backup(tb.Context(), r, BackupRequest{History: r.Source("", "", "/sparse"), Sources: []Source{{Name: "root", Location: path}}})
	if err != nil {
		tb.Fatal(err)
	}
	return point.Disks[0], path
}

// sameFiles fails the test unless two files have the same bytes.
func sameFiles(tb testing.TB, got, want string) {
	tb.Helper()
	a, err := os.Open(got)
	if err != nil {
		tb.Fatal(err)
	}
	defer a.Close()
	b, err := os.Open(want)
	if err != nil {
		tb.Fatal(err)
	}
	defer b.Close()
	x, y := make([]byte, 1<<20), make([]byte, 1<<20)
	for offset := 0; ; offset += len(x) {
		n, errA := io.ReadFull(a, x)
		m, errB := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:m]) || errA != errB { //nolint:errorlint // both come from io.ReadFull
			verdict.Fatalf(tb, "at %d: other bytes, or %v and %v", offset, errA, errB)
		}
		if errA != nil {
			return
		}
	}
}

// cancelling is a target that cancels its restore in the second region.
type cancelling struct {
	disk.Target

	cancel func()
}

func (c *cancelling) WriteAt(ctx context.Context, p []byte, offset int64) error {
	if offset >= regionBytes {
		c.cancel()
		return ctx.Err()
	}
	return c.Target.WriteAt(ctx, p, offset)
}

func TestRestore_resumesAfterAnInterruption(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	stored, source := backUpSparse(t, r)
	path := filepath.Join(t.TempDir(), "out.img")
	q := RestoreRequest{Disk: stored, Destination: Destination{Location: path}, Workers: 1}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q.Destination.wrap = func(target disk.Target) disk.Target { return &cancelling{Target: target, cancel: cancel} }
	var incomplete *IncompleteError
	if _, err := Restore(ctx, r, q); !errors.As(err, &incomplete) || !incomplete.Resumable || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	q.Destination.wrap = nil

	var first, last int64 = -1, 0
	q.Progress = func(p Progress) {
		if p.Phase != PhaseWriting || p.TotalBytes != 2*sparseData {
			t.Errorf("%+v", p)
		}
		if first < 0 {
			first = p.ProcessedBytes
		}
		last = p.ProcessedBytes
	}
	result, err := Restore(t.Context(), r, q)
	if err != nil || result.ResumedBytes != regionBytes {
		t.Errorf("%+v: %v", result, err)
	}
	if first != sparseData || last != 2*sparseData {
		t.Errorf("progress from %d to %d", first, last)
	}
	sameFiles(t, path, source)
	if _, err := os.Stat(path + disk.JournalSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the journal is still there: %v", err)
	}
}

func TestRestore_refusesADestinationWithContent(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	stored, source := backUpSparse(t, r)
	q := RestoreRequest{Disk: stored, Destination: Destination{Location: writeFile(t, noise(9, 1<<20))}}
	var opening *OpenError
	if _, err := Restore(t.Context(), r, q); !errors.As(err, &opening) || opening.Source != "" || !errors.Is(err, errclass.Conflict) {
		t.Error(err)
	}
	q.Destination.Overwrite = true
	if result, err := Restore(t.Context(), r, q); err != nil || result.ResumedBytes != 0 {
		t.Errorf("%+v: %v", result, err)
	}
	sameFiles(t, q.Destination.Location, source)
}

// memoryExport is an NBD export in memory, which says nothing about what it holds.
type memoryExport struct{ content []byte }

func (m *memoryExport) Size() int64 { return int64(len(m.content)) }

func (m *memoryExport) ReadAt(_ context.Context, p []byte, offset int64) error {
	copy(p, m.content[offset:])
	return nil
}

func (m *memoryExport) WriteAt(_ context.Context, p []byte, offset int64) error {
	copy(m.content[offset:], p)
	return nil
}

func (m *memoryExport) WriteZeroes(_ context.Context, e extent.Extent, _, _ bool) error {
	clear(m.content[e.Offset:e.End()])
	return nil
}

func (m *memoryExport) Flush(context.Context) error { return nil }

// serveMemory serves an export until the test ends, and returns its URI.
func serveMemory(tb testing.TB, m *memoryExport) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	server := &nbd.Server{Exports: &singleExport{export: nbd.Export{Backend: m}}}
	go func() { ended <- server.Serve(ctx, l) }()
	tb.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	return "nbd://" + l.Addr().String()
}

func TestRestore_resumesAtAnExportThatTheCallerIdentifies(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	stored, _ := backUpSparse(t, r)
	for identity, resumes := range map[string]bool{"claim 1": true, "": false} {
		uri := serveMemory(t, &memoryExport{content: make([]byte, stored.Bytes)})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		q := RestoreRequest{Disk: stored, Workers: 1, Destination: Destination{
			Location: uri, Overwrite: true, Identity: identity, JournalPath: filepath.Join(t.TempDir(), "journal"),
			wrap: func(target disk.Target) disk.Target { return &cancelling{Target: target, cancel: cancel} },
		}}
		var incomplete *IncompleteError
		if _, err := Restore(ctx, r, q); !errors.As(err, &incomplete) || incomplete.Resumable != resumes {
			t.Errorf("identified as %q: %+v: %v", identity, incomplete, err)
		}
		q.Destination.wrap = nil
		if result, err := Restore(t.Context(), r, q); err != nil || (result.ResumedBytes == regionBytes) != resumes {
			t.Errorf("identified as %q: %+v: %v", identity, result, err)
		}
	}
}
