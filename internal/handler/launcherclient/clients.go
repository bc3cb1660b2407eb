package launcherclient

import (
	"context"
	"net"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Dialer connects to the socket of a launcher pod.
type Dialer interface {
	Dial(ctx context.Context, launcher types.UID) (net.Conn, error)
}

// Timing limits how long a launcher may be silent.
type Timing struct {
	// First is how long a launcher may take to send its state on a new stream.
	First time.Duration
	// Idle is how long a stream may be silent before it is opened again.
	Idle time.Duration
	// Retry is the pause before a failed connection is retried.
	Retry time.Duration
}

// DefaultTiming returns the timing for production.
func DefaultTiming() Timing {
	return Timing{First: 5 * time.Second, Idle: 15 * time.Second, Retry: time.Second}
}

// Links are the connections of one node.
type Links struct {
	dialer Dialer
	timing Timing
	clock  clock.PassiveClock

	mu          sync.Mutex
	links       map[types.UID]*Link
	subscribers []func(instance types.NamespacedName)
	closed      bool
	running     sync.WaitGroup
}

// New returns an empty set of links. Close ends them.
func New(dialer Dialer, timing Timing, now clock.PassiveClock) *Links {
	return &Links{dialer: dialer, timing: timing, clock: now, links: map[types.UID]*Link{}}
}

// Subscribe registers f, which is called with the instance whose link has changed. f must not block.
func (l *Links) Subscribe(f func(instance types.NamespacedName)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscribers = append(l.subscribers, f)
}

// Ensure returns the link to a launcher pod, and creates it if there is none.
func (l *Links) Ensure(launcher types.UID, instance types.NamespacedName) (*Link, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k, ok := l.links[launcher]; ok {
		return k, nil
	}
	if l.closed {
		return nil, context.Canceled
	}
	k, err := newLink(l, launcher, instance)
	if err != nil {
		return nil, err
	}
	l.links[launcher] = k
	l.running.Go(k.run)
	return k, nil
}

// Get returns the link to a launcher pod, or nil.
func (l *Links) Get(launcher types.UID) *Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.links[launcher]
}

// Retain closes the links of an instance to every pod but launcher. If launcher is "", it closes them all.
func (l *Links) Retain(instance types.NamespacedName, launcher types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for pod, k := range l.links {
		if k.instance == instance && pod != launcher {
			k.cancel()
			delete(l.links, pod)
		}
	}
}

// Close closes every link and waits until they have ended.
func (l *Links) Close() {
	l.mu.Lock()
	l.closed = true
	for pod, k := range l.links {
		k.cancel()
		delete(l.links, pod)
	}
	l.mu.Unlock()
	l.running.Wait()
}

func (l *Links) changed(instance types.NamespacedName) {
	l.mu.Lock()
	subscribers := l.subscribers
	l.mu.Unlock()
	for _, f := range subscribers {
		f(instance)
	}
}
