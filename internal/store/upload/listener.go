package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// Patience is how long the pod waits for a byte, with a connection or without one.
	Patience = time.Hour
	// maxWaiting is how many unused connections are kept. One more takes the place of the oldest, which is most likely
	// broken.
	maxWaiting = 2 * Connections
	// maxGreeting is how many connections may be in their first lines.
	maxGreeting = 4 * Connections
)

var longAgo = time.Unix(1, 0)

// Listener takes connections from commands, and hands them to an http.Transport: its method DialContext is that of the
// transport. All methods may be called from several goroutines.
type Listener struct {
	listener net.Listener
	clock    clock.WithTicker
	log      *slog.Logger
	image    string
	closed   chan struct{}
	all      sync.WaitGroup

	mu      sync.Mutex
	session Session
	refused Session                  // the last session that was refused
	open    map[*connection]struct{} // the session's connections
	waiting []*connection            // the open connections that nobody uses, the newest last
	fresh   map[net.Conn]struct{}    // connections in their first lines
	changed chan struct{}            // closed when waiting gets another connection
	since   time.Time                // when the wait for the next byte began; zero: nobody waits
}

// connection is one of a session.
type connection struct {
	net.Conn
	from *Listener
	once sync.Once
	err  error
	// unused is closed when watchUnused has ended.
	unused chan struct{}
	broken bool // valid when unused is closed
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.once.Do(func() {
		c.from.removeConnection(c)
		c.err = c.Conn.Close()
	})
	return c.err
}

// Listen waits for connections on the loopback interface. Messages name the image.
func Listen(ctx context.Context, image string, c clock.WithTicker, log *slog.Logger) (*Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(Port)))
	if err != nil {
		return nil, fmt.Errorf("listen for an upload: %w", err)
	}
	return NewListener(l, image, c, log), nil
}

// NewListener is Listen on a given listener. Close closes it.
func NewListener(l net.Listener, image string, c clock.WithTicker, log *slog.Logger) *Listener {
	u := &Listener{
		listener: l, clock: c, log: log, image: image, closed: make(chan struct{}),
		open: map[*connection]struct{}{}, fresh: map[net.Conn]struct{}{}, changed: make(chan struct{}),
	}
	u.all.Go(u.acceptAll)
	return u
}

// Close ends everything, and waits for it.
func (l *Listener) Close() error {
	close(l.closed)
	err := l.listener.Close()
	l.mu.Lock()
	for conn := range l.fresh {
		_ = conn.Close() // It has nothing to lose.
	}
	var open []*connection
	for c := range l.open {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	l.all.Wait()
	if err != nil {
		return fmt.Errorf("end the upload: %w", err)
	}
	return nil
}

func (l *Listener) acceptAll() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			if l.pause(time.Second) != nil {
				return
			}
			l.log.Warn("no connection for an upload", "error", err)
			continue
		}
		if !l.beginGreeting(conn) { // The other side tries again.
			_ = conn.Close()
			continue
		}
		l.all.Go(func() { l.answerGreeting(conn) })
	}
}

// beginGreeting adds a connection to those in their first lines. It reports false if there are too many.
func (l *Listener) beginGreeting(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed() || len(l.fresh) >= maxGreeting {
		return false
	}
	l.fresh[conn] = struct{}{}
	return true
}

func (l *Listener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// pause waits, or returns an error if the listener is closed.
func (l *Listener) pause(d time.Duration) error {
	timer := l.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-l.closed:
		return net.ErrClosed
	}
}

// answerGreeting reads which session a connection belongs to, and takes or refuses it.
func (l *Listener) answerGreeting(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(greetingTimeout)) //nolint:forbidigo // a deadline of the system
	line, err := readLine(conn)
	session, ok := strings.CutPrefix(line, greeting)
	if err == nil && (!ok || !sessions.MatchString(session)) {
		err = errclass.Errorf(errclass.Invalid, "the other side is no command of this version of Varve")
	}
	c := &connection{Conn: conn, from: l}
	answer := taken
	if err == nil && !l.joinSession(c, Session(session)) {
		answer = refused
	}
	if err == nil {
		_, err = io.WriteString(conn, answer+"\n")
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	switch {
	case err != nil:
		l.log.Warn("a connection for an upload was not taken", "error", err)
		_ = c.Close()
	case answer == refused:
		_ = c.Close()
	default:
		l.addToWaiting(c)
	}
}

// joinSession adds a connection to its session. It reports false while another session has connections.
func (l *Listener) joinSession(c *connection, session Session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed() || len(l.open) > 0 && l.session != session {
		if l.refused != session { // It asks every second.
			l.log.Warn("another command wants to upload the image, and was refused")
		}
		l.refused = session
		return false
	}
	if l.session != session {
		l.log.Info("a command has connected to upload the image")
	}
	l.session = session
	l.open[c] = struct{}{}
	return true
}

// addToWaiting adds a connection to those that wait for a request.
func (l *Listener) addToWaiting(c *connection) {
	l.mu.Lock()
	delete(l.fresh, c.Conn)
	if _, there := l.open[c]; !there { // It was closed meanwhile.
		l.mu.Unlock()
		return
	}
	c.unused = make(chan struct{})
	l.all.Go(func() { l.watchUnused(c) })
	l.waiting = append(l.waiting, c)
	var oldest *connection
	if len(l.waiting) > maxWaiting {
		oldest = l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
	}
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
}

// watchUnused closes a connection that breaks while nobody uses it. A server says nothing before it is asked.
func (l *Listener) watchUnused(c *connection) {
	n, err := c.Read(make([]byte, 1))
	c.broken = n > 0 || !errors.Is(err, os.ErrDeadlineExceeded)
	close(c.unused)
	if c.broken {
		_ = c.Close()
	}
}

// removeConnection removes a connection from all sets.
func (l *Listener) removeConnection(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.fresh, c.Conn)
	delete(l.open, c)
	l.waiting = slices.DeleteFunc(l.waiting, func(o *connection) bool { return o == c })
}

// takeNewest returns the newest connection that waits, or nil and a channel that is closed when there is another one.
func (l *Listener) takeNewest() (*connection, <-chan struct{}) {
	for {
		l.mu.Lock()
		n := len(l.waiting)
		if n == 0 {
			defer l.mu.Unlock()
			return nil, l.changed
		}
		c := l.waiting[n-1]
		l.waiting = l.waiting[:n-1]
		l.mu.Unlock()
		err := c.SetReadDeadline(longAgo) // ends watchUnused
		<-c.unused
		if err == nil && !c.broken {
			err = c.SetReadDeadline(time.Time{})
		}
		if err == nil && !c.broken {
			return c, nil
		}
		_ = c.Close()
	}
}

// DialContext returns the next connection. If none comes within Patience, its error is Expired.
func (l *Listener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	for {
		c, changed := l.takeNewest()
		if c != nil {
			return c, nil
		}
		left, err := l.checkPatience()
		if err != nil {
			return nil, err
		}
		timer := l.clock.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C():
		case <-l.closed:
			err = net.ErrClosed
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		timer.Stop()
		if err != nil {
			return nil, err
		}
	}
}

// CheckPatience returns an error of the class Expired if no byte has come within Patience.
func (l *Listener) CheckPatience() error {
	_, err := l.checkPatience()
	return err
}

// checkPatience returns how much longer to wait for a byte.
func (l *Listener) checkPatience() (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		l.since = l.clock.Now()
	}
	left := Patience - l.clock.Since(l.since)
	if left <= 0 {
		return 0, errclass.Errorf(errclass.Expired, "nobody has uploaded the image for %s: run `varve image upload %s FILE`",
			Patience, l.image)
	}
	return left, nil
}

// NoteByte notes that at least one byte has come.
func (l *Listener) NoteByte() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = time.Time{}
}

// IsConnected reports whether a command is connected.
func (l *Listener) IsConnected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open) > 0
}
