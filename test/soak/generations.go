//go:build soak

package soak

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/varvebackup/varve/test/lab"
)

// writeEvery is the pause between two generations of a machine's disks.
const writeEvery = 20 * time.Second

// A disk has two slots, at 0 and at 32 MiB, which its machine writes in turn, and 4 MiB at 48 MiB, which it writes
// once. The machine writes 2 MiB of random data into the second MiB of a slot, syncs, and then writes a header into its
// first 4 KiB: a word, the number of the generation, and the SHA-256 of the data and of those 4 MiB. So whenever the
// disk is backed up, at least one slot is whole, and says which generation it is.
const (
	slotFunctions = `
sum_of() { # disk, slot
	{ dd if=$1 bs=1M skip=$(($2 * 32 + 1)) count=2 2>/dev/null
	dd if=$1 bs=1M skip=48 count=4 2>/dev/null; } | sha256sum | cut -d' ' -f1
}
write_base() { dd if=/dev/urandom of=$1 bs=1M seek=48 count=4 conv=notrunc,fsync 2>/dev/null; }
write_slot() { # disk, slot, generation
	dd if=/dev/urandom of=$1 bs=1M seek=$(($2 * 32 + 1)) count=2 conv=notrunc,fsync 2>/dev/null
	printf '%-4095s\n' "generation $3 $(sum_of $1 $2)" |
		dd of=$1 bs=4096 seek=$(($2 * 8192)) conv=notrunc,fsync 2>/dev/null
}
read_slots() { # disk
	for slot in 0 1; do
		set -- $1 $(dd if=$1 bs=4096 skip=$((slot * 8192)) count=1 2>/dev/null | tr -d '\0')
		[ "${2-}" != generation ] || [ "$(sum_of $1 $slot)" != "${4-}" ] || echo $3
	done
}
`
	// guestDisk is the path of a disk in a guest.
	guestDisk = `/dev/$(grep -lx %s /sys/block/*/serial | cut -d/ -f4)`
)

// generation is what was written to all disks of a machine, one after the other. It is done at zero if the guest did
// not say that it was: then nobody knows what of it was written.
type generation struct{ began, done time.Time }

// generations are what was written to the disks of a machine. The number of one is its index and 1.
type generations struct {
	mu      sync.Mutex
	written []generation
}

// write has the next generation written to the disks at paths, by run.
func (g *generations) write(run func(script string) (string, error), prepare bool, paths ...string) error {
	g.mu.Lock()
	// What was written in part is written over, so that the other slot stays whole.
	slot := 0
	for _, w := range g.written {
		if !w.done.IsZero() {
			slot = 1 - slot
		}
	}
	g.written = append(g.written, generation{began: time.Now()})
	number := len(g.written)
	g.mu.Unlock()
	script := slotFunctions
	for _, path := range paths {
		if prepare {
			script += "write_base " + path + "\n"
		}
		script += fmt.Sprintf("write_slot %s %d %d\n", path, slot, number)
	}
	_, err := run(script)
	if err != nil {
		return fmt.Errorf("write generation %d: %w", number, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.written[number-1].done = time.Now()
	return nil
}

// span returns the numbers of the oldest and the newest generation that disks may have which were backed up at a moment
// between two times.
func (g *generations) span(began, ended time.Time) (oldest, newest int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, w := range g.written {
		if !w.done.IsZero() && w.done.Before(began) {
			oldest = i + 1
		}
		if w.began.Before(ended) {
			newest = i + 1
		}
	}
	return oldest, newest
}

// isOneMoment says whether disks, which are written in this order, may have had these generations at one moment.
func (g *generations) isOneMoment(have []int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	least, most := slices.Min(have), slices.Max(have)
	for _, w := range g.written[least-1 : min(most+1, len(g.written))] {
		if w.done.IsZero() {
			return true // nobody knows
		}
	}
	return most-least <= 1 && slices.IsSortedFunc(have, func(a, b int) int { return b - a })
}

// readGeneration returns the generation of the disk at a path.
func readGeneration(ctx context.Context, box *lab.Toolbox, path string) (newest int, err error) {
	text, err := box.Run(ctx, slotFunctions+"read_slots "+path)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	for _, word := range strings.Fields(text) {
		number, err := strconv.Atoi(word)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		newest = max(newest, number)
	}
	return newest, nil
}

// pause waits for a while, and says whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
