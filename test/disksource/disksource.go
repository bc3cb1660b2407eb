// Package disksource checks what every disk.Source promises, whatever it reads: a file, an image, a server, a launcher.
package disksource

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// Source is disk.Source. The package does not import it, so that the tests of package disk can use the suite.
type Source interface {
	Bytes() int64
	ReadAt(ctx context.Context, p []byte, offset int64) error
	Data(ctx context.Context) (*extent.Set, error)
	Changes(ctx context.Context) (*extent.Set, error)
	Identity() string
	Close() error
}

// granuleBytes is the unit of Data and Changes.
const granuleBytes = 64 << 10

// Disk is what a source must show.
type Disk struct {
	// Content is that of the disk.
	Content []byte
	// Changed is what has changed since the base; nil: the source does not know.
	Changed *extent.Set
	// Exact says that the source knows which granules have changed, and names no others.
	Exact bool
}

// Run checks the contract. open opens the disk anew, and is called for each part of the contract.
func Run(t *testing.T, want Disk, open func(*testing.T) Source) {
	t.Helper()
	for name, check := range map[string]func(*testing.T, Disk, Source){
		"size":           checkSize,
		"content":        checkContent,
		"beyond the end": checkEnd,
		"data":           checkData,
		"changes":        checkChanges,
		"at once":        checkConcurrency,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			check(t, want, s)
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

func checkSize(t *testing.T, want Disk, s Source) {
	t.Helper()
	if got := s.Bytes(); got != int64(len(want.Content)) {
		verdict.Errorf(t, "%d bytes, want %d", got, len(want.Content))
	}
	if a, b := s.Identity(), s.Identity(); a != b {
		t.Errorf("the identity is %q, and then %q", a, b)
	}
}

// readAt compares a part of the disk. What the buffer held before must not be in the result.
func readAt(t *testing.T, want Disk, s Source, e extent.Extent) {
	t.Helper()
	p := bytes.Repeat([]byte{0xa5}, int(e.Length))
	if err := s.ReadAt(t.Context(), p, e.Offset); err != nil {
		t.Errorf("read %v: %v", e, err)
	} else if !bytes.Equal(p, want.Content[e.Offset:e.End()]) {
		verdict.Errorf(t, "%v has other bytes", e)
	}
}

// somewhere returns an extent of the disk of up to most bytes.
func somewhere(random *rand.Rand, size, most int64) extent.Extent {
	offset := random.Int64N(size)
	return extent.Extent{Offset: offset, Length: 1 + random.Int64N(min(most, size-offset))}
}

func checkContent(t *testing.T, want Disk, s Source) {
	t.Helper()
	size := int64(len(want.Content))
	for _, e := range []extent.Extent{{Length: size}, {Length: 1}, {Offset: size - 1, Length: 1}, {Offset: size / 2}, {Offset: granuleBytes - 1, Length: 2}} {
		readAt(t, want, s, e)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		readAt(t, want, s, somewhere(random, size, 3<<20))
	}
}

// checkEnd wants an error of what is not on the disk, also if a part of it is.
func checkEnd(t *testing.T, want Disk, s Source) {
	t.Helper()
	size := int64(len(want.Content))
	for _, e := range []extent.Extent{{Offset: size, Length: 1}, {Offset: size - 1, Length: 2}, {Offset: size - 100, Length: 1 << 20}, {Offset: size + 1<<30, Length: 512}} {
		if err := s.ReadAt(t.Context(), make([]byte, e.Length), e.Offset); err == nil {
			t.Errorf("%v was read from a disk of %d bytes", e, size)
		}
	}
}

// checkGranules wants a set of whole granules on the disk, which is the same when it is asked for again.
func checkGranules(t *testing.T, what string, want Disk, ask func(context.Context) (*extent.Set, error)) *extent.Set {
	t.Helper()
	set, err := ask(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	again, err := ask(t.Context())
	if err != nil || (set == nil) != (again == nil) {
		t.Fatalf("%s: %v, and then %v: %v", what, set, again, err)
	}
	if set == nil {
		return nil
	}
	if !set.Subtract(*again).Empty() || !again.Subtract(*set).Empty() {
		verdict.Errorf(t, "%s: %v, and then %v", what, set, again)
	}
	size := int64(len(want.Content))
	for e := range set.All() {
		if e.Offset%granuleBytes != 0 || e.End()%granuleBytes != 0 && e.End() != size || e.End() > size {
			verdict.Errorf(t, "%s: %v is not in whole granules of a disk of %d bytes", what, e, size)
		}
	}
	return set
}

// checkData wants nothing but zeroes in what is no data.
func checkData(t *testing.T, want Disk, s Source) {
	t.Helper()
	data := checkGranules(t, "data", want, s.Data)
	if data == nil {
		return
	}
	for e := range extent.NewSet(extent.Extent{Length: int64(len(want.Content))}).Subtract(*data).All() {
		if part := want.Content[e.Offset:e.End()]; len(bytes.Trim(part, "\x00")) > 0 {
			verdict.Errorf(t, "%v is no data, and is not zero", e)
		}
	}
}

func checkChanges(t *testing.T, want Disk, s Source) {
	t.Helper()
	changed := checkGranules(t, "changes", want, s.Changes)
	if (changed == nil) != (want.Changed == nil) {
		verdict.Fatalf(t, "changes %v, want %v", changed, want.Changed)
	}
	if changed == nil {
		return
	}
	if lost := want.Changed.Subtract(*changed); !lost.Empty() {
		verdict.Errorf(t, "%v has changed, and the source does not say so", lost)
	}
	if more := changed.Subtract(want.Changed.Widen(granuleBytes, int64(len(want.Content)))); want.Exact && !more.Empty() {
		t.Errorf("%v has not changed, and the source says so", more)
	}
}

func checkConcurrency(t *testing.T, want Disk, s Source) {
	t.Helper()
	var all sync.WaitGroup
	for seed := range uint64(4) {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, 7))
			for range 20 {
				readAt(t, want, s, somewhere(random, int64(len(want.Content)), 256<<10))
			}
		})
	}
	all.Wait()
}
