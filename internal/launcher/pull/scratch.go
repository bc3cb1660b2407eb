package pull

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/launcher/target"
)

const (
	// reserveBytes of the scratch volume stay free: below it the backup ends, before the guest has to wait. A guest that
	// overwrites more than this between two looks waits until the backup has ended.
	reserveBytes = 16 << 20
	// leastBytes a disk needs at the beginning, beside the reserve: the image's metadata and some room.
	leastBytes = 4 << 20
	// fullBelow is the free space in bytes below which a failed job is blamed on the scratch space.
	fullBelow = 1 << 20
	// probeEvery is how often a block is written to the volume, to see whether it still takes it.
	probeEvery = 10 * time.Second
	// answerPatience is how long the end of a backup waits for a look at the volume that is under way.
	answerPatience = 5 * time.Second
	// stalledAfter is how long the scratch volume may give no answer. Until then the guest's writes wait for it, too.
	stalledAfter = time.Minute
)

// scratch is where QEMU copies what the guest overwrites.
type scratch struct {
	volume *target.Volume
	// made: the directory with the files may exist.
	made  bool
	probe *target.Probe
	// seen is the watch over the volume once there is one, and free what the volume had before, in bytes.
	seen *watch
	free *uint64
}

// checkSpace returns nil if the volume has room for the scratch files of so many disks.
func (s *scratch) checkSpace(disks int) error {
	free, err := s.volume.FreeBytes()
	if err != nil {
		return err
	}
	s.free = &free
	return checkSpace(disks, free)
}

// lastFree returns how many bytes the volume has free. If it does not answer soon, that is what was seen last, or nil.
func (s *scratch) lastFree() *uint64 {
	if s.volume == nil {
		return nil
	}
	if free, err := s.volume.FreeBytesSoon(); err == nil {
		return &free
	}
	if s.seen != nil {
		return ptr.To(s.seen.freeBytes())
	}
	return s.free
}

// release removes what is on the volume, and closes it.
func (s *scratch) release(directory string) error {
	if s.volume == nil {
		return nil
	}
	if s.seen != nil { // its probe is on the volume
		_ = target.WaitFor(answerPatience, func(context.Context) error { s.seen.running.Wait(); return nil })
	}
	if s.probe != nil {
		_ = s.probe.Close() // nobody needs what it wrote
	}
	if !s.made {
		directory = ""
	}
	return s.volume.Release(directory)
}

func checkSpace(disks int, free uint64) error {
	need := uint64(reserveBytes + disks*leastBytes)
	if free >= need {
		return nil
	}
	return &backupjob.Failure{
		Kind: pb.Backup_INSUFFICIENT_SPACE,
		Message: fmt.Sprintf("the scratch claim has %d MiB (%d bytes) free, and the backup needs at least %d MiB (%d bytes) to begin, and then what the guest overwrites while it is pulled: use a larger claim",
			free>>20, free, need>>20, need),
	}
}

func fullFailure(used, free uint64) *backupjob.Failure {
	return &backupjob.Failure{
		Kind: pb.Backup_SCRATCH_FULL,
		Message: fmt.Sprintf("the scratch claim is full: it holds %d MiB that the guest overwrote during the backup, and %d MiB are free: use a larger claim, or pull faster",
			used>>20, free>>20),
	}
}

// watch is a look at the scratch volume, again and again, in goroutines of its own: a volume that hangs must not keep the
// backup from ending. The free space is asked for in one of them, and blocks are written in the other: a file system whose
// device hangs still tells its free space, and a slow device must not hide that the space runs out.
type watch struct {
	clock clock.Clock
	// running counts the goroutines.
	running sync.WaitGroup

	mu sync.Mutex
	// err is why the last look failed. free is what the last one that did not fail found, in bytes, and at is when that was.
	err  error
	free uint64
	at   time.Time
	// wrote is when a block was last written, and writeErr why the last attempt failed.
	wrote    time.Time
	writeErr error
}

// watch looks at the volume until ctx ends. It closes the probe. Its goroutines run in protect.
func (s *scratch) watch(ctx context.Context, c clock.WithTicker, protect func(func())) *watch {
	w := &watch{clock: c, at: c.Now(), wrote: c.Now(), free: ptr.Deref(s.free, 0)}
	s.seen = w
	volume, probe := s.volume, s.probe
	s.probe = nil
	w.running.Go(func() {
		protect(func() {
			repeat(ctx, c, backupjob.PollInterval, func() { w.note(volume.FreeBytes()) })
		})
	})
	w.running.Go(func() {
		defer probe.Close() //nolint:errcheck // nobody needs what it wrote
		protect(func() {
			repeat(ctx, c, probeEvery, func() { w.noteWrite(probe.Write()) })
		})
	})
	return w
}

// repeat calls look now and then until ctx ends.
func repeat(ctx context.Context, c clock.WithTicker, every time.Duration, look func()) {
	ticker := c.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		look()
	}
}

// note records a look at the volume. One that failed says nothing about the space.
func (w *watch) note(free uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; err == nil {
		w.free, w.at = free, w.clock.Now()
	}
}

func (w *watch) noteWrite(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writeErr = err; err == nil {
		w.wrote = w.clock.Now()
	}
}

func (w *watch) freeBytes() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.free
}

// check returns why the backup has to end, or nil.
func (w *watch) check(used uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.clock.Since(w.at) > stalledAfter, w.clock.Since(w.wrote) > stalledAfter:
		return stalledFailure(errors.Join(w.err, w.writeErr))
	case w.err == nil && w.free < reserveBytes, errclass.IsFull(w.writeErr):
		return fullFailure(used, w.free)
	}
	return nil
}

func stalledFailure(err error) *backupjob.Failure {
	f := &backupjob.Failure{Kind: pb.Backup_TARGET_STALLED, Message: fmt.Sprintf("the scratch claim has given no answer for %s, while the guest's writes may wait for it", stalledAfter)}
	if err != nil {
		f.Message += ": " + err.Error()
	}
	return f
}
