package engine

import (
	"errors"
	"sync"
)

// lifetime keeps what a connection holds open until nobody uses it: kopia unmaps its indexes when it closes, and whoever reads them
// then kills the process.
type lifetime struct {
	mu     sync.Mutex
	users  int
	ending bool
	// unused is closed once the lifetime ends and the last user has left.
	unused chan struct{}
}

func newLifetime() *lifetime { return &lifetime{unused: make(chan struct{})} }

// join adds a user until leave is called, once. It fails once the end has begun.
func (l *lifetime) join() (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		return nil, errors.New("the repository was closed")
	}
	l.users++
	return l.leave, nil
}

func (l *lifetime) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users--
	if l.ending && l.users == 0 {
		close(l.unused)
	}
}

// end begins the end, and reports whether this call did.
func (l *lifetime) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		return false
	}
	l.ending = true
	if l.users == 0 {
		close(l.unused)
	}
	return true
}
