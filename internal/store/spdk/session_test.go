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

// recordVariable has the sessions recorded again, from the target that socketVariable names.
const recordVariable = "VARVE_SPDK_RECORD"

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

// startSession returns how to reach a target: a real one if socketVariable names one, and otherwise the one whose
// answers were recorded.
func startSession(t *testing.T, name string) (dial dialer, socket string) {
	t.Helper()
	path := filepath.Join("testdata", "session-"+name+".jsonl")
	socket = os.Getenv(socketVariable)
	if socket == "" {
		s := &session{}
		s.load(t, path)
		t.Cleanup(func() {
			if !t.Failed() && s.at != len(s.events) {
				t.Errorf("%d of %d events were replayed", s.at, len(s.events))
			}
		})
		return s.replay, "recorded"
	}
	newTargetStore(t, new(net.Dialer).DialContext, socket, "session-"+name)
	if os.Getenv(recordVariable) == "" {
		return new(net.Dialer).DialContext, socket
	}
	s := &session{}
	t.Cleanup(func() {
		if !t.Failed() {
			s.save(t, path)
		}
	})
	return s.record, socket
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

func (s *session) save(t *testing.T, path string) {
	t.Helper()
	var out bytes.Buffer
	lines := json.NewEncoder(&out)
	lines.SetEscapeHTML(false)
	earlier := map[string]int{}
	for i, e := range s.events {
		if line := earlier[e.Got]; line > 0 {
			e.Got, e.GotAs = "", line
		} else if len(e.Got) > 100 {
			earlier[e.Got] = i + 1
		}
		e.SentData, e.GotData = deflate(t, e.SentData), deflate(t, e.GotData)
		if err := lines.Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func deflate(t *testing.T, data []byte) []byte {
	t.Helper()
	if len(data) == 0 {
		return nil
	}
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// record connects to a real target.
func (s *session) record(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	s.events = append(s.events, event{Connection: s.opened, Opened: network})
	return &recordedConn{Conn: conn, session: s, number: s.opened, text: network == "unix"}, nil
}

type recordedConn struct {
	net.Conn

	session *session
	number  int
	text    bool
}

func (c *recordedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if e := (event{Connection: c.number}); c.text {
		e.Sent = string(p)
		c.session.events = append(c.session.events, e)
	} else {
		e.SentData = bytes.Clone(p)
		c.session.events = append(c.session.events, e)
	}
	return n, err
}

func (c *recordedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	s := c.session
	last := &s.events[len(s.events)-1]
	if last.Connection != c.number || (last.Got == "" && last.GotData == nil) {
		s.events = append(s.events, event{Connection: c.number})
		last = &s.events[len(s.events)-1]
	}
	if c.text {
		last.Got += string(p[:n])
	} else {
		last.GotData = append(last.GotData, p[:n]...)
	}
	return n, err
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
