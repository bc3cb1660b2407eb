package nbd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/guard"
	"github.com/varvebackup/varve/test/authority"
)

// TestCancel_inTheMiddleOfAPayload: the caller gets its memory back at once even if the server stalls in the middle of a
// payload. The rest of the payload, when it comes, is dropped. The connection stays in step.
func TestCancel_inTheMiddleOfAPayload(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, h := range []headers{simpleHeaders, structuredHeaders} {
				half, rest := make(chan struct{}), make(chan struct{})
				d := &stallingServer{half: half, rest: rest, h: h}
				o := Options{}
				if secure {
					d.a, o.TLS = a, a.Client
				}
				c, err := dialScript(t, o, d.serve)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(testContext(t))
				p := make([]byte, 300_000)
				go func() {
					<-half
					cancel()
				}()
				if err := c.ReadAt(ctx, p, 0); !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				for i := range p {
					p[i] = 0xaa // the race detector would see the reader in here
				}
				close(rest)
				q := make([]byte, 1000)
				if err := c.ReadAt(testContext(t), q, 0); err != nil {
					t.Fatal(err)
				}
				same(t, q, bytes.Repeat([]byte{7}, 1000))
				same(t, p, bytes.Repeat([]byte{0xaa}, len(p)))
				if len(c.free) != slotsPerConnection || c.budget.free != c.budget.total {
					t.Errorf("%d slots and %d bytes are free", len(c.free), c.budget.free)
				}
			}
		})
	}
}

// stallingServer answers the first read in two halves, and later ones at once.
type stallingServer struct {
	half, rest chan struct{}
	h          headers
	a          *authority.Authority
}

func (s *stallingServer) serve(nc net.Conn) {
	if s.a != nil {
		nc = s.secure(nc)
		defer nc.Close()
	} else {
		scriptHandshake(nc, s.h)
	}
	for i := 0; ; i++ {
		r := expectRequest(nc, s.h)
		if r.length == 0 {
			return
		}
		b := append(reply{simple: true, handle: r.handle}.appendTo(nil, s.h), bytes.Repeat([]byte{7}, int(r.length))...)
		if s.h != simpleHeaders {
			b = chunk(s.h, r, replyOffsetData, true, dataPayload(r.offset, int(r.length)))
		}
		if i == 0 {
			nc.Write(b[:len(b)/2])
			close(s.half)
			<-s.rest
			b = b[len(b)/2:]
		}
		nc.Write(b)
	}
}

// secure does the handshake over TLS, which is the first thing that a client with TLS asks for.
func (s *stallingServer) secure(nc net.Conn) net.Conn {
	nc.Write(greeting())
	expect(nc, 4)
	expectOption(nc)
	nc.Write(optionReply(optStartTLS, repAck, nil))
	secure := tlsServer(nc, s.a)
	for {
		switch option := expectOption(secure); {
		case option == 0:
			return secure
		case option == optGo:
			secure.Write(optionReply(option, repInfo, new(bytesOf).u16(infoExport).u64(scriptBytes).u16(scriptFlags).b))
			secure.Write(optionReply(option, repAck, nil))
			return secure
		case option == optStructuredReply && s.h == structuredHeaders:
			secure.Write(optionReply(option, repAck, nil))
		default:
			secure.Write(optionReply(option, repErrUnsup, nil))
		}
	}
}

// TestCancel_beforeTheReply: the reply to a request that was given up is dropped, and only then is the slot free again.
func TestCancel_beforeTheReply(t *testing.T) {
	t.Parallel()
	const h = structuredHeaders
	got, answer := make(chan struct{}), make(chan struct{})
	c, err := dialScript(t, Options{Contexts: []string{ContextAllocation}}, func(nc net.Conn) {
		scriptHandshake(nc, h, 9)
		read := expectRequest(nc, h)
		status := expectRequest(nc, h)
		close(got)
		<-answer
		nc.Write(chunk(h, read, replyOffsetHole, false, appendHole(nil, 0, 500)))
		nc.Write(chunk(h, read, replyOffsetData, true, dataPayload(500, 500)))
		nc.Write(chunk(h, status, replyBlockStatus, true, new(bytesOf).u32(9).u32(4096).u32(0).b))
		flush := expectRequest(nc, h)
		nc.Write(chunk(h, flush, replyNone, true, nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(testContext(t))
	errs := make(chan error, 2)
	p := bytes.Repeat([]byte{0xbb}, 1000)
	go func() { errs <- c.ReadAt(ctx, p, 0) }()
	for len(c.free) == slotsPerConnection { // the read comes first
		runtime.Gosched()
	}
	go func() {
		_, err := c.Data(ctx, extent.Extent{Length: 4096})
		errs <- err
	}()
	<-got
	cause := errors.New("enough")
	cancel(cause)
	for range 2 {
		if err := <-errs; !errors.Is(err, cause) {
			t.Errorf("%v", err)
		}
	}
	if n := len(c.free); n != slotsPerConnection-2 {
		t.Errorf("%d slots are free before the replies", n)
	}
	close(answer)
	if err := c.Flush(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if n := len(c.free); n != slotsPerConnection || c.budget.free != c.budget.total {
		t.Errorf("%d slots are free after the replies", n)
	}
	same(t, p, bytes.Repeat([]byte{0xbb}, 1000))
}

// TestCancel_ofAWriteThatIsStuck: the server does not take the payload. The caller gets its memory back, at the cost of
// the connection.
func TestCancel_ofAWriteThatIsStuck(t *testing.T) {
	t.Parallel()
	stuck, end := make(chan struct{}), make(chan struct{})
	c, err := dialScript(t, Options{}, func(nc net.Conn) {
		scriptHandshake(nc, structuredHeaders)
		expect(nc, requestBytes+1)
		close(stuck)
		<-end
	})
	if err != nil {
		t.Fatal(err)
	}
	defer close(end)
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		<-stuck
		cancel()
	}()
	p := make([]byte, 1<<20)
	if err := c.WriteAt(ctx, p, 0, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for i := range p {
		p[i] = 1 // the race detector would see the writer in here
	}
	if err := c.Flush(testContext(t)); !errors.Is(err, context.Canceled) || c.Err() == nil {
		t.Errorf("the next call: %v, %v", err, c.Err())
	}
}

// TestCancel_ofAWriteThatGoesOn: the server takes the rest of the payload in time, and the client stays alive.
func TestCancel_ofAWriteThatGoesOn(t *testing.T) {
	t.Parallel()
	stuck, goOn, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c, err := dialScript(t, Options{}, func(nc net.Conn) {
		scriptHandshake(nc, simpleHeaders)
		r := expectRequest(nc, simpleHeaders)
		expect(nc, 1)
		close(stuck)
		<-goOn
		expect(nc, int(r.length)-1)
		<-returned
		for range 2 {
			nc.Write(reply{simple: true, handle: r.handle}.appendTo(nil, simpleHeaders))
			r = expectRequest(nc, simpleHeaders)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	c.grace = testTimeout
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		<-stuck
		cancel()
		for i := 0; i < len(c.slots); i++ { // until the write is given up
			s := c.slots[i]
			s.mu.Lock()
			if s.abandoned {
				i = len(c.slots)
			} else if i == len(c.slots)-1 {
				i = -1
			}
			s.mu.Unlock()
		}
		close(goOn)
	}()
	if err := c.WriteAt(ctx, make([]byte, 1<<20), 0, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(returned)
	if err := c.Flush(testContext(t)); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// TestClient_deadConnection: everything ends with the connection, and with the same cause, no matter who waits for what.
func TestClient_deadConnection(t *testing.T) {
	t.Parallel()
	const h = structuredHeaders
	const calls = slotsPerConnection + 20
	die := make(chan struct{})
	c, err := dialScript(t, Options{MaxInFlightBytes: 50 << 10}, func(nc net.Conn) {
		scriptHandshake(nc, h)
		expectRequest(nc, h)
		<-die
	})
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 2*calls)
	for range calls { // more than there are slots and bytes
		go func() { errs <- c.ReadAt(context.Background(), make([]byte, 1<<10), 0) }()
		go func() { errs <- c.Flush(context.Background()) }()
	}
	for len(c.free) > 0 {
		runtime.Gosched()
	}
	close(die)
	for range 2 * calls {
		if err := <-errs; err == nil || !errors.Is(err, c.Err()) {
			t.Errorf("%v, and the cause is %v", err, c.Err())
		}
	}
	if err := c.ReadAt(context.Background(), make([]byte, 1), 0); !errors.Is(err, c.Err()) {
		t.Errorf("later: %v", err)
	}
	if err := c.Disconnect(context.Background()); !errors.Is(err, c.Err()) {
		t.Errorf("disconnect: %v", err)
	}
}

// TestClient_closeEndsWhatIsInFlight: Close is a cause like any other.
func TestClient_closeEndsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	c, err := dialScript(t, Options{}, func(nc net.Conn) {
		scriptHandshake(nc, structuredHeaders)
		expectRequest(nc, structuredHeaders)
		close(asked)
		expect(nc, 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	go func() { errs <- c.Flush(context.Background()) }()
	<-asked
	c.Close()
	if err := <-errs; !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestClient_earlyAnswerToAWrite: a server may refuse a write before it has read all of it.
func TestClient_earlyAnswerToAWrite(t *testing.T) {
	t.Parallel()
	c, err := dialScript(t, Options{}, func(nc net.Conn) {
		scriptHandshake(nc, simpleHeaders)
		for range 2 {
			r := expectRequest(nc, simpleHeaders)
			nc.Write(reply{simple: true, errno: 28, handle: r.handle}.appendTo(nil, simpleHeaders))
			expect(nc, int(r.length))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantErrno(t, c.WriteAt(testContext(t), make([]byte, 1<<20), 0, 0), 28)
	}
	if len(c.free) != slotsPerConnection {
		t.Errorf("%d slots are free", len(c.free))
	}
}

// TestClient_twoEarlyAnswers: the second one answers no request, even while the request is still being written.
func TestClient_twoEarlyAnswers(t *testing.T) {
	t.Parallel()
	returned := make(chan struct{})
	c, err := dialScript(t, Options{}, func(nc net.Conn) {
		scriptHandshake(nc, simpleHeaders)
		r := expectRequest(nc, simpleHeaders)
		b := reply{simple: true, errno: 28, handle: r.handle}.appendTo(nil, simpleHeaders)
		nc.Write(append(b, b...))
		<-returned
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WriteAt(testContext(t), make([]byte, 1<<20), 0, 0); err == nil {
		t.Error("the write succeeds")
	}
	close(returned)
	if err := c.Flush(testContext(t)); !errors.Is(err, ErrProtocol) {
		t.Errorf("%v", err)
	}
}

// The reader clears the deadline of a call that was given up. The client's end sets one as well, maybe at the same moment.
func TestCancel_doesNotUndoTheEnd(t *testing.T) {
	t.Parallel()
	conn, peer := net.Pipe()
	defer peer.Close()
	c := &Client{dead: make(chan struct{})}
	k := &clientConn{c: c, nc: conn}
	c.conns = []*clientConn{k}
	a := &call{done: make(chan struct{}, 1)}
	a.addRequest()
	s := &slot{conn: k, state: slotSent, call: a, busy: true}
	s.abandonFor(a, context.Canceled)
	c.failWith(ErrClosed)
	if !k.giveBack(s) {
		t.Error("the call was given up")
	}
	read := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		read <- err
	}()
	select {
	case err := <-read:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the reader waits for a server that may say nothing any more")
		_ = conn.Close()
	}
}

// A mistake in a connection's goroutines ends the client, and not the process.
func TestConnection_survivesPanics(t *testing.T) {
	t.Parallel()
	conn, peer := net.Pipe()
	defer peer.Close()
	c := &Client{dead: make(chan struct{})}
	k := &clientConn{c: c, nc: conn, ended: make(chan struct{})} // without buffers
	c.conns = []*clientConn{k}
	k.runToEnd()
	var panicked *guard.PanicError
	if !errors.As(c.Err(), &panicked) {
		t.Errorf("%v", c.Err())
	}
}
