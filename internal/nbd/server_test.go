package nbd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/authority"
)

func tlsServer(nc net.Conn, a *authority.Authority) net.Conn { return tls.Server(nc, a.Server) }

// rawClient speaks to a server byte by byte.
type rawClient struct {
	t *testing.T
	net.Conn
	out   chan []byte
	ended chan error
}

// connect serves one end of a pipe and returns the other, after the greeting.
func connect(t *testing.T, s *Server) *rawClient {
	t.Helper()
	ours, theirs := net.Pipe()
	c := &rawClient{t: t, Conn: ours, ended: make(chan error, 1), out: make(chan []byte, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		c.ended <- s.ServeConn(ctx, theirs)
		close(done)
	}()
	go func() {
		for b := range c.out {
			ours.Write(b)
		}
	}()
	t.Cleanup(func() {
		ours.Close()
		close(c.out)
		cancel()
		<-done
	})
	ours.SetDeadline(time.Now().Add(testTimeout))
	if got := expect(ours, 18); !bytes.Equal(got, greeting()) {
		t.Fatalf("greeting %x", got)
	}
	return c
}

// end returns how the server ended the connection.
func (c *rawClient) end() error {
	c.t.Helper()
	select {
	case err := <-c.ended:
		return err
	case <-time.After(testTimeout):
		c.t.Fatal("the server does not end the connection")
		return nil
	}
}

// send writes in the background, in order: the server may not read everything.
func (c *rawClient) send(b []byte) { c.out <- b }

func clientFlags(flags uint32) []byte { return new(bytesOf).u32(flags).b }

func option(o uint32, data []byte) []byte {
	return append(optionHeader{option: o, length: uint32(len(data))}.appendTo(nil), data...)
}

// ask sends an option and returns the kinds of the replies up to the final one.
func (c *rawClient) ask(o uint32, data []byte) []uint32 {
	c.t.Helper()
	c.send(option(o, data))
	var kinds []uint32
	for {
		head, err := parseOptionReply(expect(c, optionReplyBytes), o)
		if err != nil {
			c.t.Fatal(err)
		}
		expect(c, int(head.length))
		kinds = append(kinds, head.kind)
		if head.kind == repAck || head.kind&repErr != 0 {
			return kinds
		}
	}
}

func oneExport(b Backend) *Server { return &Server{Exports: exportMap{"": {Backend: b}}} }

// TestServer_clientsThatBreakTheHandshake: each ends its connection with ErrProtocol and nothing else.
func TestServer_clientsThatBreakTheHandshake(t *testing.T) {
	t.Parallel()
	fixed := clientFlags(flagCFixedNewstyle)
	for name, says := range map[string][]byte{
		"unknown flags":    clientFlags(1 << 7),
		"no magic":         append(clientFlags(1), bytes.Repeat([]byte{1}, optionBytes)...),
		"not fixed":        append(clientFlags(0), option(optList, nil)...),
		"huge option":      append(clientFlags(1), optionHeader{option: optGo, length: 1 << 31}.appendTo(nil)...),
		"huge export name": append(clientFlags(1), optionHeader{option: optExportName, length: maxOptionBytes + 1}.appendTo(nil)...),
		"endless options":  append(fixed, bytes.Repeat(option(99, nil), maxOptions+1)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, oneExport(newMemDisk(4096)))
			c.send(says)
			go func() {
				for expect(c, 1) != nil { // whatever it answers
					runtime.Gosched()
				}
			}()
			if err := c.end(); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestOptions: every option is refused where it must be, and the handshake goes on after that.
func TestOptions(t *testing.T) {
	t.Parallel()
	s := &Server{Exports: exportMap{"": {Backend: newMemDisk(8192)}, "locked": {}, "blocks": {Backend: newMemDisk(8192), Block: BlockSizes{Minimum: 4096}}}}
	c := connect(t, s)
	c.send(clientFlags(flagCFixedNewstyle | flagCNoZeroes))
	last := func(kinds []uint32) uint32 { return kinds[len(kinds)-1] }
	request := func(name string, infos ...uint16) []byte {
		return exportRequest{name: name, infos: infos}.encodeRequest()
	}
	contexts := func(name string, queries ...string) []byte {
		return contextRequest{export: name, queries: queries}.encodeRequest()
	}
	for i, test := range []struct {
		option uint32
		data   []byte
		want   uint32
		count  int
	}{
		{99, []byte("data of an option from the future"), repErrUnsup, 1},
		{optStartTLS, nil, repErrPolicy, 1},
		{optList, []byte{1}, repErrInvalid, 1},
		{optList, nil, repAck, 4},
		{optGo, make([]byte, maxOptionBytes+1), repErrTooBig, 1},
		{optInfo, request("none"), repErrUnknown, 1},
		{optInfo, request("locked"), repErrPolicy, 1},
		{optInfo, request("blocks"), repAck, 3},
		{optGo, request("blocks"), repErrBlockSizeReqd, 1},
		{optInfo, request("a\x00"), repErrInvalid, 1},
		{optInfo, request(strings.Repeat("a", maxStringBytes+1)), repErrInvalid, 1},
		{optInfo, request("")[:5], repErrInvalid, 1},
		{optInfo, append(request(""), 1), repErrInvalid, 1},
		{optInfo, request("", infoName, infoDescription, infoBlockSize, 77), repAck, 4},
		{optListMetaContext, contexts(""), repErrInvalid, 1},
		{optStructuredReply, nil, repAck, 1},
		{optStructuredReply, []byte{0}, repErrInvalid, 1},
		{optListMetaContext, contexts(""), repAck, 4},
		{optListMetaContext, contexts("", "base:", "qemu:dirty-bitmap:"), repAck, 3},
		{optListMetaContext, contexts("none"), repErrUnknown, 1},
		{optSetMetaContext, contexts(""), repAck, 1},
		{optSetMetaContext, contexts("", "qemu:"), repAck, 1},
		{optSetMetaContext, contexts("", "base:allocation", "base:none"), repAck, 2},
		{optSetMetaContext, contexts("", "base:allocation")[:9], repErrInvalid, 1},
		{optSetMetaContext, new(bytesOf).u32(0).u32(1 << 31).b, repErrInvalid, 1},
		{optExtendedHeaders, nil, repAck, 1},
		{optExtendedHeaders, nil, repErrInvalid, 1},
		{optStructuredReply, nil, repErrInvalid, 1},
		{optAbort, nil, repAck, 1},
	} {
		if got := c.ask(test.option, test.data); last(got) != test.want || len(got) != test.count {
			t.Errorf("%d: option %s: %#x", i, optionName(test.option), got)
		}
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
}

// transmit takes c to the transmission phase.
func (c *rawClient) transmit(h headers, contexts ...string) {
	c.t.Helper()
	c.send(clientFlags(flagCFixedNewstyle))
	switch h {
	case structuredHeaders:
		c.ask(optStructuredReply, nil)
	case extendedHeaders:
		c.ask(optExtendedHeaders, nil)
	case simpleHeaders:
		c.send(option(optExportName, nil))
		expect(c, 8+2+exportPadBytes)
		return
	}
	if len(contexts) > 0 {
		c.ask(optSetMetaContext, contextRequest{queries: contexts}.encodeRequest())
	}
	c.ask(optGo, exportRequest{infos: []uint16{infoBlockSize}}.encodeRequest())
}

// answer sends a request and reads its simple reply, or the only chunk of its reply.
func (c *rawClient) answer(h headers, r request, payload []byte) (errno uint32) {
	c.t.Helper()
	c.send(append(r.appendTo(nil, h), payload...))
	size := map[headers]int{simpleHeaders: simpleReplyBytes, structuredHeaders: structuredReplyBytes, extendedHeaders: extendedReplyBytes}[h]
	b := expect(c, size)
	if b == nil {
		c.t.Fatal("no reply")
	}
	got := parseReply(b)
	if got.handle != r.handle || !got.isFinal() || h == extendedHeaders && got.offset != r.offset {
		c.t.Errorf("reply %+v to %+v", got, r)
	}
	if got.simple {
		if got.errno == 0 && r.cmd == cmdRead {
			expect(c, int(r.length))
		}
		return got.errno
	}
	b = expect(c, int(got.length))
	if got.kind&replyErr == 0 {
		return 0
	}
	e, err := parseErrorChunk(got.kind, b)
	if err != nil {
		c.t.Error(err)
	}
	return e.errno
}

// TestServer_refusesRequests: each gets its errno, and the next one is served.
func TestServer_refusesRequests(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	const inval, nospc, overflow = uint32(unix.EINVAL), uint32(unix.ENOSPC), uint32(unix.EOVERFLOW)
	for name, h := range framings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newMemDisk(size)
			c := connect(t, &Server{Exports: exportMap{"": {Backend: d}}, Limits: Limits{MaxRequestBytes: 64 << 10}})
			contexts := []string{}
			if h != simpleHeaders {
				contexts = []string{ContextAllocation}
			}
			c.transmit(h, contexts...)
			write := CommandFlags(0)
			if h == extendedHeaders {
				write = cmdFlagPayloadLen
			}
			for i, test := range []struct {
				r       request
				payload int
				want    uint32
			}{
				{request{cmd: cmdRead, length: 512}, 0, 0},
				{request{cmd: 99}, 0, inval},
				{request{cmd: cmdRead, offset: size - 1, length: 2}, 0, inval},
				{request{cmd: cmdRead, offset: 1 << 63, length: 2}, 0, inval},
				{request{cmd: cmdRead, offset: size, length: 0}, 0, inval},
				{request{cmd: cmdRead, length: 128 << 10}, 0, inval},
				{request{cmd: cmdRead, length: 512, flags: 1 << 14}, 0, inval},
				{request{cmd: cmdRead, length: 512, flags: CmdFlagNoHole}, 0, inval},
				{request{cmd: cmdWrite, flags: write, offset: size - 1, length: 2}, 2, nospc},
				{request{cmd: cmdWrite, flags: write | cmdFlagReqOne, length: 2}, 2, inval},
				{request{cmd: cmdWrite, flags: write, length: 100 << 10}, 100 << 10, inval},
				{request{cmd: cmdWriteZeroes, offset: 1, length: size}, 0, nospc},
				{request{cmd: cmdTrim, offset: 1, length: size}, 0, inval},
				{request{cmd: cmdFlush, offset: 1}, 0, inval},
				{request{cmd: cmdFlush, length: 1}, 0, inval},
				{request{cmd: cmdFlush, flags: CmdFlagFUA}, 0, 0},
				{request{cmd: cmdWrite, flags: write | CmdFlagFUA, length: 2}, 2, 0},
			} {
				test.r.handle = uint64(i) << 40
				if got := c.answer(h, test.r, make([]byte, test.payload)); got != test.want {
					t.Errorf("%d: %v %v: %d, want %d", i, test.r.cmd, test.r.requestedExtent(), got, test.want)
				}
			}
			switch h {
			case simpleHeaders:
				if got := c.answer(h, request{cmd: cmdRead, flags: cmdFlagDF, length: 512}, nil); got != inval {
					t.Errorf("DF: %d", got)
				}
				if got := c.answer(h, request{cmd: cmdBlockStatus, length: 512}, nil); got != inval {
					t.Errorf("status: %d", got)
				}
			case structuredHeaders, extendedHeaders:
				if got := c.answer(h, request{cmd: cmdRead, flags: cmdFlagDF, length: 128 << 10}, nil); got != overflow {
					t.Errorf("DF: %d", got)
				}
				if got := c.answer(h, request{cmd: cmdBlockStatus, flags: cmdFlagReqOne, length: size}, nil); got != 0 {
					t.Errorf("status: %d", got)
				}
			}
			if h == extendedHeaders {
				if got := c.answer(h, request{cmd: cmdTrim, flags: cmdFlagPayloadLen, length: 100}, make([]byte, 100)); got != inval {
					t.Errorf("trim with payload: %d", got)
				}
			}
			c.send(request{cmd: cmdDisc}.appendTo(nil, h))
			if err := c.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServer_decidesReadOnly: read-only holds whatever the client and the backend can do.
func TestServer_decidesReadOnly(t *testing.T) {
	t.Parallel()
	d := newMemDisk(8192)
	for _, b := range []Backend{d, plainDisk{d}} {
		c := connect(t, &Server{Exports: exportMap{"": {Backend: b, ReadOnly: true}}})
		c.transmit(simpleHeaders)
		for _, cmd := range []command{cmdWrite, cmdTrim, cmdWriteZeroes} {
			payload := bytes.Repeat([]byte{1}, 512)
			if cmd != cmdWrite {
				payload = nil
			}
			if got := c.answer(simpleHeaders, request{cmd: cmd, length: 512}, payload); got != uint32(unix.EPERM) {
				t.Errorf("%v: %d", cmd, got)
			}
		}
	}
	same(t, d.data, make([]byte, 8192))
}

// TestServer_refusesUnalignedRequests: an export with blocks refuses requests that are not aligned to them.
func TestServer_refusesUnalignedRequests(t *testing.T) {
	t.Parallel()
	c := connect(t, &Server{Exports: exportMap{"": {Backend: newMemDisk(16384), Block: BlockSizes{Minimum: 4096}}}})
	c.transmit(structuredHeaders, ContextAllocation)
	for _, cmd := range []command{cmdRead, cmdTrim, cmdWriteZeroes, cmdBlockStatus} {
		for _, e := range []extent.Extent{{Offset: 512, Length: 4096}, {Offset: 0, Length: 512}} {
			if got := c.answer(structuredHeaders, request{cmd: cmd, offset: uint64(e.Offset), length: uint64(e.Length)}, nil); got != uint32(unix.EINVAL) {
				t.Errorf("%v of %v: %d", cmd, e, got)
			}
		}
	}
}

// TestServer_oneConnectionStaysOne: a read that must not be fragmented has one chunk, and a status of one extent has one extent.
func TestServer_oneConnectionStaysOne(t *testing.T) {
	t.Parallel()
	d := newMemDisk(8192)
	d.touch(extent.Extent{Offset: 512, Length: 512}, false)
	for _, h := range []headers{structuredHeaders, extendedHeaders} {
		for _, test := range []struct {
			r      request
			length uint64
			done   bool
		}{
			{request{cmd: cmdRead, length: 4096}, holeBytes, false},
			{request{cmd: cmdRead, flags: cmdFlagDF, length: 4096}, offsetBytes + 4096, true},
			{request{cmd: cmdBlockStatus, length: 4096}, map[headers]uint64{structuredHeaders: 4 + 3*8, extendedHeaders: 8 + 3*16}[h], true},
			{request{cmd: cmdBlockStatus, flags: cmdFlagReqOne, length: 4096}, map[headers]uint64{structuredHeaders: 4 + 8, extendedHeaders: 8 + 16}[h], true},
		} {
			c := connect(t, oneExport(d))
			c.transmit(h, ContextAllocation)
			c.send(test.r.appendTo(nil, h))
			size := structuredReplyBytes
			if h == extendedHeaders {
				size = extendedReplyBytes
			}
			if got := parseReply(expect(c, size)); got.length != test.length || got.isFinal() != test.done {
				t.Errorf("%+v: %+v", test.r, got)
			}
		}
	}
}

// TestContexts_areOfTheirExport: contexts that were selected for another export do not count.
func TestContexts_areOfTheirExport(t *testing.T) {
	t.Parallel()
	d := newMemDisk(8192)
	c := connect(t, &Server{Exports: exportMap{"": {Backend: d}, "other": {Backend: d}}})
	c.send(clientFlags(flagCFixedNewstyle))
	c.ask(optStructuredReply, nil)
	c.ask(optSetMetaContext, contextRequest{export: "other", queries: []string{ContextAllocation}}.encodeRequest())
	c.ask(optGo, exportRequest{}.encodeRequest())
	if got := c.answer(structuredHeaders, request{cmd: cmdBlockStatus, length: 512}, nil); got != uint32(unix.EINVAL) {
		t.Errorf("%d", got)
	}
}

// TestMemory_comesBack: more is read and written in all than may be in flight.
func TestMemory_comesBack(t *testing.T) {
	t.Parallel()
	const each = 64 << 10
	s := oneExport(newMemDisk(each))
	s.Limits = Limits{MaxRequestBytes: each, MaxInFlightBytes: 2 * each}
	c := open1(t, serve(t, s), Options{MaxInFlightBytes: each})
	ctx := testContext(t)
	p := make([]byte, each)
	for range 10 {
		if err := errors.Join(c.WriteAt(ctx, p, 0, 0), c.ReadAt(ctx, p, 0)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServer_clientsThatBreakTheTransmission(t *testing.T) {
	t.Parallel()
	for name, says := range map[string][]byte{
		"magic":          bytes.Repeat([]byte{9}, requestBytes),
		"extended magic": request{}.appendTo(nil, extendedHeaders),
		"huge payload":   request{cmd: cmdWrite, length: 1<<32 - 1}.appendTo(nil, structuredHeaders),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, oneExport(newMemDisk(4096)))
			c.transmit(structuredHeaders)
			c.send(says)
			if err := c.end(); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestServer_tls: with TLS configured, nothing is said in plaintext, and data injected after STARTTLS ends the
// connection.
func TestServer_tls(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	d := newMemDisk(1 << 20)
	s := &Server{Exports: exportMap{"": {Backend: d, MultiConn: true}}, TLS: a.Server}
	c := connect(t, s)
	c.send(clientFlags(flagCFixedNewstyle))
	for _, o := range []uint32{optList, optGo, optInfo, optStructuredReply, optExtendedHeaders, optSetMetaContext, 99} {
		if got := c.ask(o, nil); got[0] != repErrTLSReqd {
			t.Errorf("option %s in plaintext: %#x", optionName(o), got)
		}
	}
	c.send(append(option(optStartTLS, nil), option(optGo, exportRequest{}.encodeRequest())...))
	if err := c.end(); !errors.Is(err, ErrProtocol) {
		t.Errorf("plaintext behind STARTTLS: %v", err)
	}
	c = connect(t, s)
	c.send(append(clientFlags(flagCFixedNewstyle), option(optExportName, nil)...))
	if err := c.end(); !errors.Is(err, ErrTLS) {
		t.Errorf("export name in plaintext: %v", err)
	}
	target := serve(t, s)
	if _, err := Dial(testContext(t), target, Options{TLS: authority.New(t).Client}); err == nil {
		t.Error("a stranger")
	}
	again := open1(t, target, Options{TLS: a.Client, Connections: 2, Contexts: []string{ContextAllocation}})
	want := pattern(1<<20, 3)
	if err := again.WriteAt(testContext(t), want, 0, 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := again.ReadAt(testContext(t), got, 0); err != nil {
		t.Fatal(err)
	}
	same(t, got, want)
	if err := again.Disconnect(testContext(t)); err != nil {
		t.Error(err)
	}
}

// TestServer_clientGone: the backend's context ends, even if every worker is busy and more requests wait.
func TestServer_clientGone(t *testing.T) {
	t.Parallel()
	d := newMemDisk(1 << 20)
	var started, cancelled atomic.Int32
	d.fault = func(ctx context.Context, _ string, _ extent.Extent) error {
		started.Add(1)
		<-ctx.Done()
		cancelled.Add(1)
		return ctx.Err()
	}
	var released sync.WaitGroup
	released.Add(1)
	s := &Server{Exports: exportMap{"": {Backend: d, Release: released.Done}}, Limits: Limits{Workers: 2}}
	c := connect(t, s)
	c.transmit(simpleHeaders)
	for i := range 30 {
		if _, err := c.Write(request{cmd: cmdTrim, handle: uint64(i), length: 512}.appendTo(nil, simpleHeaders)); err != nil {
			t.Fatal(err)
		}
	}
	for started.Load() < 2 {
		runtime.Gosched()
	}
	c.Close()
	if err := c.end(); err != nil {
		t.Errorf("%v", err)
	}
	released.Wait()
	if started.Load() != 2 || cancelled.Load() != 2 {
		t.Errorf("%d requests began, %d were cancelled", started.Load(), cancelled.Load())
	}
}

// TestServer_shutdown: requests that were received end well, then the connection ends. Nothing new is served.
func TestServer_shutdown(t *testing.T) {
	t.Parallel()
	d := newMemDisk(1 << 20)
	begun, goOn := make(chan struct{}), make(chan struct{})
	d.fault = func(_ context.Context, what string, _ extent.Extent) error {
		if what == "flush" {
			close(begun)
			<-goOn
		}
		return nil
	}
	s := oneExport(d)
	target := serve(t, s)
	idle := open1(t, target, Options{})
	c := open1(t, target, Options{})
	flushed := make(chan error)
	go func() { flushed <- c.Flush(testContext(t)) }()
	<-begun
	stopped := make(chan error)
	go func() { stopped <- s.Shutdown(testContext(t)) }()
	for idle.Err() == nil {
		runtime.Gosched()
	}
	close(goOn)
	if err := <-flushed; err != nil {
		t.Errorf("in flight: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := Dial(testContext(t), target, Options{}); err == nil {
		t.Error("a connection after the end")
	}
}

// TestServer_shutdownHasAnEnd: a backend that hangs is cancelled when Shutdown's context ends.
func TestServer_shutdownHasAnEnd(t *testing.T) {
	t.Parallel()
	d := newMemDisk(1 << 20)
	begun := make(chan struct{})
	d.fault = func(ctx context.Context, _ string, _ extent.Extent) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	s := oneExport(d)
	c := open1(t, serve(t, s), Options{})
	flushed := make(chan error, 1)
	go func() { flushed <- c.Flush(testContext(t)) }()
	<-begun
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := <-flushed; err == nil {
		t.Error("the flush succeeded")
	}
}

// TestLimits tests the limits on connections and on the handshake's time.
func TestLimits(t *testing.T) {
	t.Parallel()
	target := serve(t, &Server{Exports: exportMap{"": {Backend: newMemDisk(4096), MultiConn: true}}, Limits: Limits{Connections: 2}})
	open1(t, target, Options{Connections: 2})
	if _, err := Dial(testContext(t), target, Options{}); err == nil {
		t.Error("three connections")
	}
	s := oneExport(newMemDisk(4096))
	s.Limits.HandshakeTimeout = 500 * time.Millisecond
	c := connect(t, s)
	if err := c.end(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent client: %v", err)
	}
}

// TestServer_slowClient: a client that sends requests and does not read makes the server hold no more than the limits allow.
func TestServer_slowClient(t *testing.T) {
	t.Parallel()
	const each = 64 << 10
	d := newMemDisk(1 << 20)
	d.touch(extent.Extent{Length: 1 << 20}, false)
	var reads atomic.Int32
	d.fault = func(context.Context, string, extent.Extent) error {
		reads.Add(1)
		return nil
	}
	s := &Server{Exports: exportMap{"": {Backend: plainDisk{d}}}, Limits: Limits{MaxRequestBytes: each, MaxInFlightBytes: 4 * each}}
	c := connect(t, s)
	c.transmit(structuredHeaders)
	for i := range 100 {
		if _, err := c.Write(request{cmd: cmdRead, handle: uint64(i), length: each}.appendTo(nil, structuredHeaders)); err != nil {
			t.Fatal(err)
		}
	}
	for reads.Load() < 2 {
		runtime.Gosched()
	}
	if n := reads.Load(); n != 2 {
		t.Errorf("%d reads for a client that takes none", n)
	}
	seen := map[uint64]bool{}
	for range 100 {
		r := parseReply(expect(c, structuredReplyBytes))
		expect(c, int(r.length))
		seen[r.handle] = true
	}
	if len(seen) != 100 || reads.Load() != 100 {
		t.Errorf("%d replies, %d reads", len(seen), reads.Load())
	}
}
