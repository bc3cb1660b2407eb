package nbd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout is how long a test waits for something that must happen.
const testTimeout = 60 * time.Second

func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	tb.Cleanup(cancel)
	return ctx
}

// unit is the granularity of a memDisk's status.
const unit = 512

// memDisk is a disk in memory with every optional interface. It is also the model that clients are compared with.
type memDisk struct {
	mu      sync.RWMutex
	data    []byte
	zero    []bool // by unit: it is a hole, which reads as zeroes
	dirty   []bool
	flushes int
	trims   int
	cached  extent.Set

	contexts []string
	// fault, if set, is called before each request to the backend.
	fault func(ctx context.Context, what string, e extent.Extent) error
}

func newMemDisk(size int) *memDisk {
	d := &memDisk{
		data: make([]byte, size), zero: make([]bool, (size+unit-1)/unit), dirty: make([]bool, (size+unit-1)/unit),
		contexts: []string{ContextAllocation, ContextDirtyBitmap + "b0", "x-varve:units"},
	}
	for i := range d.zero {
		d.zero[i] = true
	}
	return d
}

func (d *memDisk) check(ctx context.Context, what string, e extent.Extent) error {
	if d.fault == nil {
		return nil
	}
	return d.fault(ctx, what, e)
}

// soil fills the disk with content that differs from what a test will write.
func (d *memDisk) soil(seed byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.data, pattern(len(d.data), seed))
	clear(d.zero)
}

// content returns a copy, for tests whose clients are other processes: nothing else orders their writes before this
// read.
func (d *memDisk) content() []byte {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return bytes.Clone(d.data)
}

func (d *memDisk) Size() int64 { return int64(len(d.data)) }

func (d *memDisk) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if err := d.check(ctx, "read", extent.Extent{Offset: offset, Length: int64(len(p))}); err != nil {
		return err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	copy(p, d.data[offset:])
	return nil
}

func (d *memDisk) WriteAt(ctx context.Context, p []byte, offset int64) error {
	e := extent.Extent{Offset: offset, Length: int64(len(p))}
	if err := d.check(ctx, "write", e); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.data[offset:], p)
	d.touch(e, false)
	return nil
}

func (d *memDisk) Flush(ctx context.Context) error {
	if err := d.check(ctx, "flush", extent.Extent{}); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushes++
	return nil
}

func (d *memDisk) WriteZeroes(ctx context.Context, e extent.Extent, noHole, _ bool) error {
	if err := d.check(ctx, "zero", e); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.data[e.Offset:e.End()])
	d.touch(e, !noHole)
	return nil
}

func (d *memDisk) Trim(ctx context.Context, e extent.Extent) error {
	d.mu.Lock()
	d.trims++
	d.mu.Unlock()
	return d.WriteZeroes(ctx, e, false, false)
}

func (d *memDisk) Cache(_ context.Context, e extent.Extent) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cached = d.cached.Union(extent.NewSet(e))
	return nil
}

// touch records a change; only whole units become holes.
func (d *memDisk) touch(e extent.Extent, hole bool) {
	for i := e.Offset / unit; i*unit < e.End(); i++ {
		whole := e.Contains(extent.Extent{Offset: i * unit, Length: min(unit, d.Size()-i*unit)})
		d.zero[i] = hole && whole || d.zero[i] && hole
		d.dirty[i] = true
	}
}

func (d *memDisk) NextRun(ctx context.Context, e extent.Extent) (int64, bool, error) {
	var n int64
	var kind bool
	err := d.runs(ctx, ContextAllocation, e, func(length int64, flags uint64) bool {
		n, kind = length, flags&StateZero != 0
		return false
	})
	return n, kind, err
}

func (d *memDisk) Contexts() []string { return d.contexts }

func (d *memDisk) BlockStatus(ctx context.Context, name string, e extent.Extent, report func(int64, uint64) bool) error {
	if err := d.check(ctx, "status", e); err != nil {
		return err
	}
	return d.runs(ctx, name, e, report)
}

func (d *memDisk) runs(_ context.Context, name string, e extent.Extent, report func(int64, uint64) bool) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for at := e.Offset; at < e.End(); {
		i := at / unit
		end := min((i+1)*unit, d.Size())
		flags := d.flags(name, i)
		for end < e.End() && d.flags(name, end/unit) == flags {
			end = min(end+unit, d.Size())
		}
		if !report(end-at, flags) {
			return nil
		}
		at = end
	}
	return nil
}

func (d *memDisk) flags(name string, i int64) uint64 {
	switch {
	case name == ContextAllocation && d.zero[i]:
		return StateHole | StateZero
	case name == ContextDirtyBitmap+"b0" && d.dirty[i]:
		return StateDirty
	case name == "x-varve:units":
		return uint64(i) & 0xff
	}
	return 0
}

// plainDisk hides everything that is optional.
type plainDisk struct{ d *memDisk }

func (p plainDisk) Size() int64 { return p.d.Size() }
func (p plainDisk) ReadAt(ctx context.Context, b []byte, offset int64) error {
	return p.d.ReadAt(ctx, b, offset)
}

// writeDisk has only what is needed for writing.
type writeDisk struct{ plainDisk }

func (p writeDisk) WriteAt(ctx context.Context, b []byte, offset int64) error {
	return p.d.WriteAt(ctx, b, offset)
}
func (p writeDisk) Flush(ctx context.Context) error { return p.d.Flush(ctx) }

// exportMap serves exports by name.
type exportMap map[string]Export

func (m exportMap) Open(_ context.Context, name string) (Export, error) {
	x, ok := m[name]
	if !ok {
		return x, ErrUnknownExport
	}
	if x.Backend == nil {
		return x, errors.New("not for you")
	}
	return x, nil
}

func (m exportMap) List(context.Context) ([]ListedExport, error) {
	if _, ok := m["unlistable"]; ok {
		return nil, errors.New("not for you")
	}
	var list []ListedExport
	for name, x := range m {
		list = append(list, ListedExport{Name: name, Description: x.Description})
	}
	return list, nil
}

// serve runs s on a unix socket until the test ends, and returns the target.
func serve(tb testing.TB, s *Server) Target {
	tb.Helper()
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		tb.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(tb.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("Serve: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return Target{Network: "unix", Address: l.Addr().String(), TLS: s.TLS != nil}
}

// serveDisk serves one export under the empty name.
func serveDisk(tb testing.TB, b Backend) Target {
	tb.Helper()
	return serve(tb, &Server{Exports: exportMap{"": {Backend: b, MultiConn: true}}})
}

func open1(tb testing.TB, target Target, o Options) *Client {
	tb.Helper()
	c, err := Dial(testContext(tb), target, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// pattern returns n bytes that differ from place to place.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16) ^ seed
	}
	return b
}

func same(t *testing.T, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			verdict.Fatalf(t, "byte %d is %#x, want %#x (%d and %d bytes)", i, got[i], want[i], len(got), len(want))
		}
	}
	verdict.Fatalf(t, "%d bytes, want %d", len(got), len(want))
}

func wantErrno(t *testing.T, err error, errno unix.Errno) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Errorf("%v, want %v", err, errno)
	}
}
