package cluster

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
)

// brokenConnection is a connection whose way is broken: nothing that was sent arrives, not even that it ends.
type brokenConnection struct {
	httpstream.Connection

	failure string
	ended   chan struct{}
}

func (c *brokenConnection) CreateStream(h http.Header) (httpstream.Stream, error) {
	s := &brokenStream{ended: c.ended}
	if h.Get(corev1.StreamType) == corev1.StreamTypeError && c.failure != "" {
		s.failure = strings.NewReader(c.failure)
	}
	return s, nil
}

func (c *brokenConnection) Close() error                     { <-c.ended; return nil }
func (c *brokenConnection) CloseChan() <-chan bool           { return nil }
func (*brokenConnection) RemoveStreams(...httpstream.Stream) {}

type brokenStream struct {
	httpstream.Stream

	failure io.Reader
	ended   chan struct{}
}

func (s *brokenStream) Read(data []byte) (int, error) {
	if s.failure != nil {
		return s.failure.Read(data)
	}
	<-s.ended
	return 0, io.EOF
}

func (s *brokenStream) Write([]byte) (int, error) { <-s.ended; return 0, io.EOF }
func (*brokenStream) Close() error                { return nil }
func (s *brokenStream) Reset() error              { <-s.ended; return nil }

// The end of a forwarding is that of its connections at once, even if the other side cannot be told.
func TestForwarding_endsAtOnce(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	f := newForwarding(&brokenConnection{ended: ended}, new(atomic.Int64))
	c, err := f.dial(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.Write(make([]byte, 1<<20)) }()
	f.end()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// When nobody listens on the port, the pod may have ended: the next connection has to look at it.
func TestForwarding_endsWithItsPod(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	f := newForwarding(&brokenConnection{ended: ended, failure: "connection refused"}, new(atomic.Int64))
	if _, err := f.dial(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	<-f.ended.Done()
}
