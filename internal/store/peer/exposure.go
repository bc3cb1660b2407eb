package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
	"github.com/varvebackup/varve/internal/store/disk"
)

// exposure is a lease of one reader on an image, and the NBD export of it. It implements [nbd.Backend], [nbd.Sparse]
// and [nbd.StatusReporter].
type exposure struct {
	id    string
	size  int64
	clock clock.PassiveClock
	// ended is closed when the exposure is to end.
	ended   chan struct{}
	endOnce sync.Once

	lease disk.Lease
	file  *os.File
	check *pieceCheck

	mu          sync.RWMutex
	closed      bool
	connections int
	lastUse     time.Time
}

var (
	_ nbd.Sparse         = (*exposure)(nil)
	_ nbd.StatusReporter = (*exposure)(nil)
)

// openExposure leases an image of a size.
func openExposure(
	ctx context.Context, id string, d disk.Disk, image disk.Object, c clock.PassiveClock,
) (*exposure, error) {
	lease, err := d.Open(ctx, image.Name)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(lease.Path())
	if err != nil {
		return nil, errors.Join(err, lease.Close())
	}
	return &exposure{
		id: id, size: image.Bytes, clock: c, ended: make(chan struct{}), lease: lease, file: file, lastUse: c.Now(),
	}, nil
}

// end asks for the end of the exposure.
func (x *exposure) end() { x.endOnce.Do(func() { close(x.ended) }) }

// close ends reads, and then the lease.
func (x *exposure) close() error {
	x.end()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	return errors.Join(x.file.Close(), x.lease.Close())
}

func (x *exposure) addConnection() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.connections++
}

// noteUse begins the time after which an exposure without connections is idle.
func (x *exposure) noteUse() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lastUse = x.clock.Now()
}

func (x *exposure) removeConnection() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.connections--
	x.lastUse = x.clock.Now()
}

// isIdle reports whether nobody has had the export open for as long as limit.
func (x *exposure) isIdle(limit time.Duration) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.connections == 0 && x.clock.Since(x.lastUse) >= limit
}

// Size implements [nbd.Backend].
func (x *exposure) Size() int64 { return x.size }

// ReadAt implements [nbd.Backend].
func (x *exposure) ReadAt(ctx context.Context, p []byte, offset int64) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.closed {
		return unix.ESHUTDOWN
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := x.check.checkRange(x.file, offset, int64(len(p))); err != nil {
		return err
	}
	_, err := x.file.ReadAt(p, offset)
	return err
}

// NextRun implements [nbd.Sparse]. The file cannot change.
func (x *exposure) NextRun(_ context.Context, e extent.Extent) (length int64, zero bool, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.closed {
		return 0, false, unix.ESHUTDOWN
	}
	data, err := x.file.Seek(e.Offset, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return x.size - e.Offset, true, nil
	case err != nil:
		return 0, false, fmt.Errorf("find data after byte %d: %w", e.Offset, err)
	case data > e.Offset:
		return min(data, x.size) - e.Offset, true, nil
	}
	hole, err := x.file.Seek(e.Offset, unix.SEEK_HOLE)
	if err != nil {
		return 0, false, fmt.Errorf("find a hole after byte %d: %w", e.Offset, err)
	}
	return min(hole, x.size) - e.Offset, false, nil
}

// Contexts implements [nbd.StatusReporter].
func (x *exposure) Contexts() []string { return []string{nbd.ContextAllocation} }

// BlockStatus implements [nbd.StatusReporter].
func (x *exposure) BlockStatus(
	ctx context.Context, _ string, e extent.Extent, report func(length int64, flags uint64) bool,
) error {
	for at := e.Offset; at < e.End(); {
		length, zero, err := x.NextRun(ctx, extent.Extent{Offset: at, Length: e.End() - at})
		if err != nil {
			return err
		}
		if length <= 0 {
			return io.ErrUnexpectedEOF
		}
		var flags uint64
		if zero {
			flags = nbd.StateHole | nbd.StateZero
		}
		if !report(length, flags) {
			return nil
		}
		at += length
	}
	return nil
}
