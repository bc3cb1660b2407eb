package spdk

import (
	"bufio"
	"bytes"
	"compress/flate"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// event is a line of a recorded session. All lines are in the order in which things happened, on all connections.
type event struct {
	Connection int    `json:"connection"`
	Opened     string `json:"opened,omitempty"` // unix: JSON-RPC; tcp: NVMe over TCP
	// Sent and Got are JSON-RPC. SentData and GotData are NVMe over TCP, compressed by DEFLATE.
	Sent     string `json:"sent,omitempty"`
	Got      string `json:"got,omitempty"`
	GotAs    int    `json:"got_as,omitempty"` // the line, counted from 1, whose Got it is, too
	SentData []byte `json:"sent_data,omitempty"`
	GotData  []byte `json:"got_data,omitempty"`
}

// session is a recorded session, or one that is being recorded.
type session struct {
	mu     sync.Mutex
	opened int
	events []event
	at     int    // replayed: the next event
	rest   []byte // replayed: what is left of its bytes
}

// startSession returns how to reach the target of a session: the one whose answers were recorded, or a real one behind
// the build tag spdk_target.
var startSession = startReplay

func sessionFile(name string) string { return filepath.Join("testdata", "session-"+name+".jsonl") }

// startReplay plays a session on the target whose answers were recorded.
func startReplay(t *testing.T, name string) (dial dialer, socket string) {
	t.Helper()
	s := &session{}
	s.load(t, sessionFile(name))
	t.Cleanup(func() {
		if !t.Failed() && s.at != len(s.events) {
			t.Errorf("%d of %d events were replayed", s.at, len(s.events))
		}
	})
	return s.replay, "recorded"
}

func (s *session) load(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := json.NewDecoder(bufio.NewReader(f)); ; {
		var e event
		err := lines.Decode(&e)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.GotAs > 0 {
			e.Got = s.events[e.GotAs-1].Got
		}
		s.events = append(s.events, e)
	}
}

// replay connects to the recorded target, which wants to hear exactly what was said, in the same order.
func (s *session) replay(_ context.Context, network, _ string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	if s.at == len(s.events) || s.events[s.at].Opened != network || s.events[s.at].Connection != s.opened {
		return nil, errors.New("replay: no connection was made at this point of the session")
	}
	s.advance()
	return &replayedConn{session: s, number: s.opened}, nil
}

// advance goes to the next event. The caller has the mutex.
func (s *session) advance() {
	s.at++
	if s.rest = nil; s.at < len(s.events) {
		e := s.events[s.at]
		s.rest = []byte(e.Sent + e.Got)
		if data := slices.Concat(e.SentData, e.GotData); len(data) > 0 {
			s.rest, _ = io.ReadAll(flate.NewReader(bytes.NewReader(data))) // what is broken differs
		}
	}
}

type replayedConn struct {
	session *session
	number  int
}

func (c *replayedConn) Write(p []byte) (int, error) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == len(s.events) {
		return 0, errors.New("replay: the session has ended")
	}
	if e := s.events[s.at]; e.Connection != c.number || e.Got != "" || e.GotData != nil || !bytes.Equal(s.rest, p) {
		return 0, &replayError{event: s.at, wanted: s.rest, got: p}
	}
	s.advance()
	return len(p), nil
}

func (c *replayedConn) Read(p []byte) (int, error) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == len(s.events) || s.events[s.at].Connection != c.number || s.events[s.at].Sent != "" ||
		s.events[s.at].SentData != nil {
		return 0, errors.New("replay: the target said no more at this point of the session")
	}
	n := copy(p, s.rest)
	if s.rest = s.rest[n:]; len(s.rest) == 0 {
		s.advance()
	}
	return n, nil
}

// replayError says what was sent instead of what was recorded.
type replayError struct {
	event       int
	wanted, got []byte
}

func (e *replayError) Error() string {
	at := 0
	for at < min(len(e.wanted), len(e.got)) && e.wanted[at] == e.got[at] {
		at++
	}
	show := func(p []byte) string { return string(p[at:min(len(p), at+200)]) }
	return "replay: after " + string(e.got[:min(at, 200)]) + " was sent: " + show(e.got) + ", and recorded: " +
		show(e.wanted)
}

func (c *replayedConn) Close() error                     { return nil }
func (c *replayedConn) LocalAddr() net.Addr              { return nil }
func (c *replayedConn) RemoteAddr() net.Addr             { return nil }
func (c *replayedConn) SetDeadline(time.Time) error      { return nil }
func (c *replayedConn) SetReadDeadline(time.Time) error  { return nil }
func (c *replayedConn) SetWriteDeadline(time.Time) error { return nil }
