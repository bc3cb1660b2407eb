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

// Clients are the connections of one node.
type Clients struct {
	dialer Dialer
	timing Timing
	clock  clock.PassiveClock

	mu          sync.Mutex
	byPod       map[types.UID]*Client
	subscribers []func(instance types.NamespacedName)
	closed      bool
	running     sync.WaitGroup
}

// New returns an empty set of clients. Close ends them.
func New(dialer Dialer, timing Timing, now clock.PassiveClock) *Clients {
	return &Clients{dialer: dialer, timing: timing, clock: now, byPod: map[types.UID]*Client{}}
}

// Subscribe registers f, which is called with the instance about whose launcher something new is known. f must not block.
func (c *Clients) Subscribe(f func(instance types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

// Ensure returns the client of a launcher pod, and creates it if there is none.
func (c *Clients) Ensure(launcher types.UID, instance types.NamespacedName) (*Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if client, ok := c.byPod[launcher]; ok {
		return client, nil
	}
	if c.closed {
		return nil, context.Canceled
	}
	client, err := newClient(c, launcher, instance)
	if err != nil {
		return nil, err
	}
	c.byPod[launcher] = client
	c.running.Go(client.followUntilClosed)
	return client, nil
}

// Get returns the client of a launcher pod, or nil.
func (c *Clients) Get(launcher types.UID) *Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byPod[launcher]
}

// Retain closes the clients of an instance to every pod but launcher. If launcher is "", it closes them all.
func (c *Clients) Retain(instance types.NamespacedName, launcher types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pod, client := range c.byPod {
		if client.instance == instance && pod != launcher {
			client.cancel()
			delete(c.byPod, pod)
		}
	}
}

// Close closes every client and waits until they have ended.
func (c *Clients) Close() {
	c.mu.Lock()
	c.closed = true
	for pod, client := range c.byPod {
		client.cancel()
		delete(c.byPod, pod)
	}
	c.mu.Unlock()
	c.running.Wait()
}

func (c *Clients) notifySubscribers(instance types.NamespacedName) {
	c.mu.Lock()
	subscribers := c.subscribers
	c.mu.Unlock()
	for _, f := range subscribers {
		f(instance)
	}
}
