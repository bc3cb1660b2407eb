//go:build spdk_target

package spdk

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/json"
	"net"
	"os"
	"testing"
)

// recordVariable has the sessions recorded again.
const recordVariable = "VARVE_SPDK_RECORD"

func init() { startSession = startOnTarget }

// startOnTarget plays a session on a real target.
func startOnTarget(t *testing.T, name string) (dial dialer, socket string) {
	t.Helper()
	socket = readSocket(t)
	newTargetStore(t, new(net.Dialer).DialContext, socket, "session-"+name)
	if os.Getenv(recordVariable) == "" {
		return new(net.Dialer).DialContext, socket
	}
	s := &session{}
	t.Cleanup(func() {
		if !t.Failed() {
			s.save(t, sessionFile(name))
		}
	})
	return s.record, socket
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
		e.SentData, e.GotData = compressData(t, e.SentData), compressData(t, e.GotData)
		if err := lines.Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func compressData(t *testing.T, data []byte) []byte {
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
