package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/varvebackup/varve/internal/errclass"
)

// largePiece is how long a piece is that is not sent before there is room for it, in bytes.
const largePiece = 16 << 10

// forwarding is a connection to the API server that has connections to ports of a pod. Closing it, or sending anything, may take long when
// the way is broken, so nobody waits for that.
type forwarding struct {
	conn  httpstream.Connection
	moved *atomic.Int64
	// ended ends when the pod or the API server has ended the forwarding, or end was called. Its connections end with it.
	ended    context.Context //nolint:containedctx // of the forwarding
	end      context.CancelFunc
	requests atomic.Int64
}

func newForwarding(conn httpstream.Connection, moved *atomic.Int64) *forwarding {
	f := &forwarding{conn: conn, moved: moved}
	f.ended, f.end = context.WithCancel(context.Background())
	go func() {
		select {
		case <-conn.CloseChan():
		case <-f.ended.Done():
		}
		f.end()
		_ = conn.Close()
	}()
	return f
}

// streams are a connection to a port: its data, and why there is none.
type streams struct{ data, failure httpstream.Stream }

// dial connects to a port.
func (f *forwarding) dial(ctx context.Context, port int) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.ended, func() { cancel(errclass.Errorf(errclass.Transient, "the forwarding has ended")) })()
	s, err := await(ctx, func() (streams, error) { return f.open(port) }, f.reset)
	if err != nil {
		return nil, err
	}
	return f.join(s), nil
}

// open makes the streams (kubectl port-forward, protocol portforward.k8s.io).
func (f *forwarding) open(port int) (s streams, err error) {
	h := http.Header{}
	h.Set(corev1.PortHeader, strconv.Itoa(port))
	h.Set(corev1.PortForwardRequestIDHeader, strconv.FormatInt(f.requests.Add(1), 10))
	h.Set(corev1.StreamType, corev1.StreamTypeError)
	if s.failure, err = f.conn.CreateStream(h.Clone()); err != nil {
		return s, fmt.Errorf("error stream: %w", err)
	}
	_ = s.failure.Close() // Nothing is written to it.
	h.Set(corev1.StreamType, corev1.StreamTypeData)
	if s.data, err = f.conn.CreateStream(h); err != nil {
		f.reset(s)
		return s, fmt.Errorf("data stream: %w", err)
	}
	return s, nil
}

// reset ends streams. What was not read is not in the way of other streams any more.
func (f *forwarding) reset(s streams) {
	for _, one := range []httpstream.Stream{s.data, s.failure} {
		if one != nil {
			_ = one.Reset()
			f.conn.RemoveStreams(one)
		}
	}
}

// join returns a connection of the streams. It is a pipe, which closes and keeps deadlines at once.
func (f *forwarding) join(s streams) net.Conn {
	ours, theirs := net.Pipe()
	unregister := context.AfterFunc(f.ended, func() { _ = ours.Close() })
	go func() {
		// A port that nobody listens on, or a pod that is gone: the next connection looks at the pod.
		if text, err := io.ReadAll(io.LimitReader(s.failure, largePiece)); err == nil && len(text) > 0 {
			f.end()
		}
	}()
	go func() {
		_, _ = io.Copy(ours, &countedReader{s.data, f.moved})
		_ = ours.Close()
	}()
	go func() {
		_, _ = io.Copy(&countedWriter{s.data, f.moved}, ours)
		_ = ours.Close()
		unregister()
		f.reset(s)
	}()
	return theirs
}

// countedReader counts what is read.
type countedReader struct {
	io.Reader

	moved *atomic.Int64
}

func (r *countedReader) Read(data []byte) (int, error) {
	n, err := r.Reader.Read(data)
	r.moved.Add(int64(n))
	return n, err
}

// countedWriter counts what is written in large pieces.
type countedWriter struct {
	io.Writer

	moved *atomic.Int64
}

func (w *countedWriter) Write(data []byte) (int, error) {
	n, err := w.Writer.Write(data)
	if n >= largePiece {
		w.moved.Add(int64(n))
	}
	return n, err
}
