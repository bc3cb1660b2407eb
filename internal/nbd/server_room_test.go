package nbd

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
)

// Clients that only connect lock nobody out, and cost no admitted client its place.
func TestPlaces_silentClientsMakeWay(t *testing.T) {
	t.Parallel()
	s := &Server{Exports: exportMap{"": {Backend: newMemDisk(4096)}}, Limits: Limits{Connections: 3, IdleTimeout: 1}}
	target := serve(t, s)
	first := open1(t, target, Options{})
	silent := make([]net.Conn, 0, 20)
	for range cap(silent) {
		c, err := new(net.Dialer).DialContext(t.Context(), target.Network, target.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(testTimeout))
		expect(c, len(greeting()))
		silent = append(silent, c)
	}
	for range 2 {
		if err := open1(t, target, Options{}).Flush(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Flush(testContext(t)); err != nil {
		t.Errorf("who was there: %v", err)
	}
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first silent client: %v", err)
	}
}

// When all places are taken, the client that has been idle longest gives way, if it was idle for long enough. A client
// with a request does not.
func TestPlaces_theLongestIdleMakesWay(t *testing.T) {
	t.Parallel()
	d := newMemDisk(4096)
	begun, goOn := make(chan struct{}), make(chan struct{})
	d.fault = func(_ context.Context, what string, _ extent.Extent) error {
		if what == "flush" {
			begun <- struct{}{}
			<-goOn
		}
		return nil
	}
	places := func(idle time.Duration) *Server {
		return &Server{Exports: exportMap{"": {Backend: d}}, Limits: Limits{Connections: 2, IdleTimeout: idle}}
	}
	patient := serve(t, places(0))
	open1(t, patient, Options{})
	open1(t, patient, Options{})
	if _, err := Dial(testContext(t), patient, Options{}); err == nil || !strings.Contains(err.Error(), "2 connections, and none is idle") {
		t.Errorf("a third client: %v", err)
	}

	target := serve(t, places(1))
	busy, idle := open1(t, target, Options{}), open1(t, target, Options{})
	flushed := make(chan error)
	go func() { flushed <- busy.Flush(testContext(t)) }()
	<-begun
	third := open1(t, target, Options{})
	for idle.Err() == nil {
		runtime.Gosched()
	}
	go func() { flushed <- third.Flush(testContext(t)) }()
	<-begun
	if _, err := Dial(testContext(t), target, Options{}); err == nil {
		t.Error("the place of a busy client was given away")
	}
	close(goOn)
	if err := errors.Join(<-flushed, <-flushed); err != nil {
		t.Error(err)
	}
}

// slowReaders makes clients that request each bytes and do not read the answer. It returns once all requests are in the
// server.
func slowReaders(t *testing.T, s *Server, n int, each uint64) []*rawClient {
	t.Helper()
	clients := make([]*rawClient, 0, n)
	for range n {
		c := connect(t, s)
		c.transmit(structuredHeaders)
		c.send(request{cmd: cmdRead, length: each}.appendTo(nil, structuredHeaders))
		clients = append(clients, c)
	}
	for busy := 0; busy < n; runtime.Gosched() {
		busy = 0
		s.mu.Lock()
		for c := range s.sessions {
			busy += int(c.busy.Load())
		}
		s.mu.Unlock()
	}
	return clients
}

// memoryServer returns a server with memory for two reads of each bytes, over all connections. reads counts the
// requests to its disk.
func memoryServer(each int64, stall time.Duration) (s *Server, reads *atomic.Int32) {
	d := newMemDisk(int(each))
	d.touch(extent.Extent{Length: each}, false)
	reads = new(atomic.Int32)
	d.fault = func(context.Context, string, extent.Extent) error {
		reads.Add(1)
		return nil
	}
	l := Limits{MaxRequestBytes: each, MaxInFlightBytes: 2 * each, MaxMemoryBytes: 4 * each, StallTimeout: stall}
	return &Server{Exports: exportMap{"": {Backend: plainDisk{d}}}, Limits: l}, reads
}

// All connections share one bound: requests wait, and are answered.
func TestMemory_isBoundedOverAllConnections(t *testing.T) {
	t.Parallel()
	const each = 64 << 10
	s, reads := memoryServer(each, 0)
	clients := slowReaders(t, s, 10, each)
	for waiting := 0; waiting < 8; runtime.Gosched() {
		waiting = 0
		s.room.reads.mu.Lock()
		for w := s.room.reads.first; w != nil; w = w.next {
			waiting++
		}
		s.room.reads.mu.Unlock()
		if n := reads.Load(); n > 2 {
			t.Fatalf("%d reads at once with memory for 2", n)
		}
	}
	for _, c := range clients {
		go func() {
			expect(c, int(parseReply(expect(c, structuredReplyBytes)).length))
			c.send(request{cmd: cmdDisc}.appendTo(nil, structuredHeaders))
		}()
	}
	for _, c := range clients {
		if err := c.end(); err != nil {
			t.Error(err)
		}
	}
	if s.room.reads.usedBytes() != 0 || reads.Load() != 10 {
		t.Errorf("%d reads, %d bytes are in use", reads.Load(), s.room.reads.usedBytes())
	}
}

// A client that does not take its answers delays nobody for longer than StallTimeout.
func TestMemory_isTakenFromStalledClients(t *testing.T) {
	t.Parallel()
	const each = 64 << 10
	s, _ := memoryServer(each, 20*time.Millisecond)
	stalled := slowReaders(t, s, 2, each)
	p := make([]byte, each)
	if err := open1(t, serve(t, s), Options{}).ReadAt(testContext(t), p, 0); err != nil {
		t.Fatal(err)
	}
	var err error
	select {
	case err = <-stalled[0].ended:
	case err = <-stalled[1].ended:
	case <-time.After(testTimeout):
	}
	if !errors.Is(err, errStalled) {
		t.Errorf("a stalled client ended with %v", err)
	}
}
