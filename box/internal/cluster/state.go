// Package cluster brings a whole box up and down, and reports its status.
//
// Up and Down may be interrupted at any point, by SIGKILL or by a reset of the machine, and are then simply run
// again: each step checks what exists before it makes or removes anything. The box recognises what it owns by
// recorded process identities, by membership in its control group, by the alias of its bridge and by its directory,
// and never by the name of a program.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/atomicfile"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/netplan"
	"github.com/varvebackup/varve/box/internal/node"
	"github.com/varvebackup/varve/box/internal/proc"
)

// State records what a box owns outside its directory.
type State struct {
	Bridge string       `json:"bridge"`
	Plan   netplan.Plan `json:"plan"`
	Nodes  []NodeState  `json:"nodes"` // node i is at i-1
}

// NodeState is one node of a State.
type NodeState struct {
	Init    proc.ID   `json:"init"`
	Started time.Time `json:"started"`
}

func (s *State) nodeSpec(dir layout.Box, i int) node.Spec {
	return node.Spec{Dir: dir, Index: i, Plan: s.Plan}
}

// errStateDamaged says that the record of what the box owns is unreadable.
var errStateDamaged = errors.New("the box's state cannot be read")

// loadState returns fs.ErrNotExist if there is no box in dir, and errStateDamaged if its state cannot be parsed.
func loadState(dir layout.Box) (*State, error) {
	data, err := os.ReadFile(dir.State())
	if isMissing(err) {
		return nil, fmt.Errorf("there is no box in %s: %w (`box up` makes one)", dir, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("read the box's state: %w", err)
	}
	s := &State{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errStateDamaged, dir.State(), err)
	}
	return s, nil
}

func (s *State) saveState(dir layout.Box) error { return atomicfile.WriteJSON(dir.State(), s, 0o644) }

// lockBox ensures that only one process at a time changes the box, and returns the function that releases it. The lock
// is on the directory itself, so it leaves nothing behind. With create it makes the directory; without it a missing
// one is fs.ErrNotExist.
func lockBox(ctx context.Context, dir layout.Box, create bool) (func(), error) {
	for {
		if create {
			if err := os.MkdirAll(string(dir), 0o755); err != nil {
				return nil, fmt.Errorf("make the box's directory: %w", err)
			}
		}
		d, err := os.Open(string(dir))
		if err != nil {
			return nil, fmt.Errorf("lock the box: %w", err)
		}
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isSameDirectory(d, string(dir)) {
			return func() { d.Close() }, nil //nolint:errcheck,gosec // closing releases the lock; nothing was written
		}
		d.Close() //nolint:errcheck,gosec // nothing was written
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select { // another command works on the box, or it has removed the directory meanwhile
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another box command on %s to end: %w", dir, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func isSameDirectory(d *os.File, path string) bool {
	a, errA := d.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
