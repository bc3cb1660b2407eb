package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/test/verdict"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := children(); left != "" {
			fmt.Fprintln(os.Stderr, "child processes are left:", left)
			code = 1
		}
		os.Exit(code)
	}))
}

// children returns the numbers of the processes that this one has started and that have not ended.
func children() string {
	var all []string
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err == nil {
			all = append(all, strings.Fields(string(b))...)
		}
	}
	return strings.Join(all, " ")
}

const kib, mib = 1 << 10, 1 << 20

// noise returns n random bytes.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1}).Read(b)
	return b
}

func set(extents ...extent.Extent) extent.Set { return extent.NewSet(extents...) }

// listing returns a set as text.
func listing(s extent.Set) string {
	var out []string
	for e := range s.All() {
		out = append(out, e.String())
	}
	return strings.Join(out, " ")
}

// wantError checks the class of an error, and that it names things.
func wantError(t *testing.T, err, class error, texts ...string) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Errorf("%v, want class %v", err, class)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v: it does not say %q", err, text)
		}
	}
}

func wantBytes(t *testing.T, s Source, want []byte) {
	t.Helper()
	got := make([]byte, s.Bytes())
	if err := s.ReadAt(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		verdict.Fatalf(t, "other bytes (%d, want %d)", len(got), len(want))
	}
	data, err := s.Data(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if data == nil {
		return
	}
	got = make([]byte, s.Bytes())
	for e := range data.All() {
		if err := s.ReadAt(t.Context(), got[e.Offset:e.End()], e.Offset); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want) {
		verdict.Fatalf(t, "other bytes if only the data %s is read", listing(*data))
	}
}

func openSource(t *testing.T, spec string, o SourceOptions) Source {
	t.Helper()
	s, err := OpenSource(t.Context(), spec, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// used returns how much space a file takes on its file system, in bytes.
func used(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// sparseFile makes a file of size bytes that has data in some places.
func sparseFile(t *testing.T, size int64, data ...extent.Extent) (path string, content []byte) {
	t.Helper()
	path, content = filepath.Join(t.TempDir(), "disk.img"), make([]byte, size)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	err = f.Truncate(size)
	for i, e := range data {
		copy(content[e.Offset:e.End()], noise(int(e.Length), uint64(i)+1))
		_, werr := f.WriteAt(content[e.Offset:e.End()], e.Offset)
		err = errors.Join(err, werr)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return path, content
}

// ram is a disk in memory behind an NBD server.
type ram struct {
	mu      sync.Mutex
	data    []byte
	written int64 // bytes of requests that write, zeroes included
	flushes int
	dirty   map[string]extent.Set
}

func (d *ram) Size() int64 { return int64(len(d.data)) }

func (d *ram) ReadAt(_ context.Context, p []byte, offset int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(p, d.data[offset:])
	return nil
}

func (d *ram) WriteAt(_ context.Context, p []byte, offset int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.written += int64(copy(d.data[offset:], p))
	return nil
}

func (d *ram) Flush(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushes++
	return nil
}

func (d *ram) Contexts() []string {
	names := []string{nbd.ContextAllocation}
	for name := range d.dirty {
		names = append(names, nbd.ContextDirtyBitmap+name)
	}
	return names
}

// ramUnit is the granularity of a ram's status.
const ramUnit = 4 * kib

func (d *ram) BlockStatus(_ context.Context, name string, e extent.Extent, report func(int64, uint64) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at := e.Offset; at < e.End(); {
		end := min(at/ramUnit*ramUnit+ramUnit, d.Size())
		var flags uint64
		unit := extent.Extent{Offset: at / ramUnit * ramUnit, Length: end - at/ramUnit*ramUnit}
		if bitmap, ok := strings.CutPrefix(name, nbd.ContextDirtyBitmap); !ok && isZero(d.data[unit.Offset:unit.End()]) {
			flags = nbd.StateZero | nbd.StateHole
		} else if ok && d.dirty[bitmap].Overlaps(unit) {
			flags = nbd.StateDirty
		}
		if !report(end-at, flags) {
			return nil
		}
		at = end
	}
	return nil
}

// plainRAM is a ram that does not report its zeroes.
type plainRAM struct{ d *ram }

func (p plainRAM) Size() int64 { return p.d.Size() }
func (p plainRAM) ReadAt(ctx context.Context, b []byte, at int64) error {
	return p.d.ReadAt(ctx, b, at)
}

func (p plainRAM) WriteAt(ctx context.Context, b []byte, at int64) error {
	return p.d.WriteAt(ctx, b, at)
}
func (p plainRAM) Flush(ctx context.Context) error { return p.d.Flush(ctx) }

// exports has one export, with the empty name.
type exports struct{ export nbd.Export }

func (x exports) Open(_ context.Context, name string) (nbd.Export, error) {
	if name != "" {
		return nbd.Export{}, nbd.ErrUnknownExport
	}
	return x.export, nil
}

func (x exports) List(context.Context) ([]nbd.ListedExport, error) {
	return []nbd.ListedExport{{}}, nil
}

// serveNBD serves an export on a unix socket until the test ends, and returns its URI.
func serveNBD(t *testing.T, x nbd.Export) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "disk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- (&nbd.Server{Exports: exports{x}}).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "nbd+unix:///?socket=" + socket
}
