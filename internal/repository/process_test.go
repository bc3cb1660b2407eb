package repository

import (
	"errors"
	"strings"
	"sync"

	"github.com/kopia/kopia/repo/blob"
)

// errKilled is what a process is told by its storage that should not run any more.
var errKilled = errors.New("this process was killed")

// process is one that has opened a site on a machine. Once it is killed, nothing reaches the storage that it still does, so it leaves there what
// kill -9 leaves: sessions, leases and locks, and blobs up to a moment. That moment is between two blobs, like that of each failpoint. It can still
// read, because kopia tries for ever to, and what it says in the end is what one says whose storage takes nothing more.
type process struct {
	mu   sync.Mutex
	dead bool
	// changes is how many blobs it puts or deletes until it is killed; 0: it is not. last says whether the last of them is done, and killed is
	// called then; nil: nothing is.
	changes int
	last    bool
	killed  func()
	// data is how many bytes of packs with blocks it has put.
	data int64
}

// process is the last one on a machine.
func (s *site) process(machine string) *process {
	p, _ := s.processes.Load(machine)
	return p.(*process)
}

// dies has the process killed after so many blobs.
func (p *process) dies(changes int, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes, p.last = changes, last
}

// kill kills the process at once.
func (p *process) kill() {
	p.mu.Lock()
	p.dead = true
	killed := p.killed
	p.mu.Unlock()
	if killed != nil {
		killed()
	}
}

// wasKilled says whether it was, and that it will not be.
func (p *process) wasKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes, p.killed = 0, nil
	return p.dead
}

func (p *process) uploaded() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.data
}

// change puts or deletes a blob.
func (p *process) change(do func() error) error {
	p.mu.Lock()
	if p.dead {
		p.mu.Unlock()
		return errKilled
	}
	dies := p.changes == 1
	if p.changes > 0 {
		p.changes--
	}
	last := p.last
	p.mu.Unlock()
	var err error
	if !dies || last {
		err = do()
	}
	if dies {
		p.kill()
		return errKilled
	}
	return err
}

// put counts a blob.
func (p *process) put(id blob.ID, bytes int) {
	if strings.HasPrefix(string(id), "p") {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.data += int64(bytes)
	}
}
