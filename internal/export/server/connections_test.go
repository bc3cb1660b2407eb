package server_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/server"
)

// isOpen reports whether the server keeps a connection.
func isOpen(conn net.Conn) bool {
	conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// awaitClosed waits until the server has closed a connection.
func awaitClosed(t *testing.T, what string, conn net.Conn) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); isOpen(conn); {
		if time.Now().After(deadline) {
			t.Fatalf("%s is open", what)
		}
	}
}

func (s *site) dialPlain(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// dialGuest opens a connection and sends a request with the token, whose answer is read to its end.
func (s *site) dialGuest(t *testing.T) *tls.Conn {
	t.Helper()
	conn := s.dial(t)
	askAgain(t, conn)
	return conn
}

// askAgain sends a request on a connection that is open.
func askAgain(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte(strings.Replace(goodRequest, "/data", "/data?length=512", 1))); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n != 512 {
		t.Fatalf("%d bytes: %v", n, err)
	}
}

func TestConnections_theOldestStrangerGoes(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{Limits: server.Limits{Connections: 3, HeaderTime: time.Minute}}, exporttest.NewVolume("root", 1<<20, false, 1))
	guest := s.dialGuest(t)
	first, second := s.dialPlain(t), s.dialPlain(t)
	if !isOpen(first) || !isOpen(second) {
		t.Error("a connection within the limit is closed")
	}
	third := s.dialPlain(t)
	awaitClosed(t, "the oldest stranger", first)
	if !isOpen(second) || !isOpen(third) {
		t.Error("another stranger is closed")
	}
	askAgain(t, guest)
}

// Connections that end, of guests and of strangers, leave their place.
func TestConnections_thatEndLeaveTheirPlace(t *testing.T) {
	t.Parallel()
	s := openVolumes(t, server.Config{Limits: server.Limits{Connections: 3, HeaderTime: time.Minute}}, exporttest.NewVolume("root", 1<<20, false, 1))
	stranger := s.dialPlain(t)
	for range 10 {
		guest, other := s.dialGuest(t), s.dialPlain(t)
		for _, ending := range []net.Conn{guest, other} {
			if err := ending.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			awaitClosed(t, "a connection that its client has ended", ending) // its place is free before it is closed
		}
	}
	if !isOpen(stranger) {
		t.Error("a connection had to go for those that had ended")
	}
}

func TestConnections_inUseStay(t *testing.T) {
	t.Parallel()
	disk := exporttest.NewVolume("root", 32<<20, false, 1)
	s := openVolumes(t, server.Config{Limits: server.Limits{Connections: 2, HeaderTime: time.Minute}}, disk)
	var busy []*tls.Conn
	for range 2 {
		conn := s.dial(t)
		if _, err := conn.Write([]byte(strings.Replace(goodRequest, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		busy = append(busy, conn)
	}
	awaitClosed(t, "a new connection without room", s.dialPlain(t))
	for _, conn := range busy {
		if n, err := io.Copy(io.Discard, conn); err != nil || n < 32<<20-1000 {
			t.Errorf("a download ended after %d bytes: %v", n, err)
		}
	}
	// A guest without a request goes before one with a request would.
	idle := s.dialGuest(t)
	newer := s.dialGuest(t)
	askAgain(t, s.dial(t))
	awaitClosed(t, "the oldest idle guest", idle)
	askAgain(t, newer)
}
