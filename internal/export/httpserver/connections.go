package httpserver

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"sync"
)

// connections bounds how many connections are open. A new one always gets in: for it goes the oldest that has never
// come with a request of BeginRequest, or else the oldest that serves none now. So a crowd of strangers closes one
// another's connections, and none of a client that is known and at work.
type connections struct {
	mu   sync.Mutex
	most int
	// strangers have never come with a request of BeginRequest; guests have. Both have the oldest first.
	strangers, guests list.List
}

// connection is an open connection. A nil one, of a request that came another way, does nothing.
type connection struct {
	net.Conn
	all *connections
	// The fields below are guarded by all.mu.
	place *list.Element
	guest bool
	// requests is how many of BeginRequest are being served.
	requests int
}

// listen returns l with its connections counted.
func (c *connections) listen(l net.Listener) net.Listener {
	return &countedListener{Listener: l, all: c}
}

type countedListener struct {
	net.Listener
	all *connections
}

// Accept returns the next connection, and closes another one if there are too many.
func (l *countedListener) Accept() (net.Conn, error) {
	plain, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: plain, all: l.all}
	if victim := l.all.add(c); victim != nil {
		victim.Close() //nolint:errcheck // it goes in any case
	}
	return c, nil
}

// add adds a connection and returns the one that has to go for it. It is the new one itself if all others are in use.
func (c *connections) add(added *connection) (victim *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.strangers.Len()+c.guests.Len() >= c.most {
		victim = c.findIdle()
		if victim == nil {
			return added
		}
		victim.remove()
	}
	added.place = c.strangers.PushBack(added)
	return victim
}

func (c *connections) findIdle() *connection {
	if first := c.strangers.Front(); first != nil {
		return first.Value.(*connection)
	}
	for e := c.guests.Front(); e != nil; e = e.Next() {
		if idle := e.Value.(*connection); idle.requests == 0 {
			return idle
		}
	}
	return nil
}

// remove forgets the connection. The caller holds all.mu.
func (c *connection) remove() {
	if c.place == nil {
		return
	}
	if c.guest {
		c.all.guests.Remove(c.place)
	} else {
		c.all.strangers.Remove(c.place)
	}
	c.place = nil
}

// Close closes the connection.
func (c *connection) Close() error {
	c.all.mu.Lock()
	c.remove()
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// BeginRequest marks the request with this context as one of a client that is known: its connection does not go for a new
// one until the request has ended. The caller calls what it returns then.
func BeginRequest(ctx context.Context) (end func()) {
	c := connectionOf(ctx)
	if c == nil {
		return func() {}
	}
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.requests++
	if !c.guest && c.place != nil {
		c.all.strangers.Remove(c.place)
		c.place = c.all.guests.PushBack(c)
	}
	c.guest = true
	return func() {
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		c.requests--
	}
}

type connectionKey struct{}

// withConnection is http.Server.ConnContext.
func withConnection(ctx context.Context, nc net.Conn) context.Context {
	if secure, ok := nc.(*tls.Conn); ok {
		nc = secure.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, nc)
}

// connectionOf returns the connection of a request.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}
