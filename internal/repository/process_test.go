package repository

import (
	"errors"
	"strings"
	"sync"

	"github.com/kopia/kopia/repo/blob"
)

// errKilled is the storage's error for a process that should not run any more.
var errKilled = errors.New("this process was killed")

// process is a process that has opened a site on a machine. Once it is killed, nothing that it still does reaches the storage. So
// it leaves there what kill -9 leaves: sessions, leases and locks, and blobs up to some moment. That moment is between two blobs,
// like that of each failpoint. It can still read, because kopia tries to forever, and in the end it reports what any process
// reports whose storage takes nothing more.
type process struct {
	mu   sync.Mutex
	dead bool
	// changes is how many blobs it puts or deletes until it is killed; 0: it is not. last says whether the last of them is
	// carried out. killed is called then, and may be nil.
	changes int
	last    bool
	killed  func()
	// data is how many bytes of packs with blocks it has put.
	data int64
}

// process returns the last process on a machine.
func (s *site) process(machine string) *process {
	p, _ := s.processes.Load(machine)
	return p.(*process)
}

// dies makes the process be killed after this many blobs.
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

// wasKilled says whether the process was killed, and keeps it from being killed from then on.
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

// change puts or deletes a blob by do, unless the process is dead.
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
