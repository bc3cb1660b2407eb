package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/blob"
)

const (
	// StallLimit is how long a request may go without a sign of life. What is sent last waits in the system's buffers; on a line
	// of 300 kbit/s that is a minute.
	StallLimit = 2 * time.Minute
	// StallAttempts is how often an operation that stalls is tried. When a network path breaks, all open connections are dead; a
	// new one may work. An operation of a NewPatient storage is tried once here, because that tries again, and says
	// meanwhile that it waits.
	StallAttempts = 3
)

// errStalled ends an attempt in which nothing has moved.
var errStalled = errors.New("nothing moved")

// stallDetector is a storage whose requests do not wait forever for a silent server. kopia's S3 client has no limit of its own.
type stallDetector struct {
	blob.Storage

	limit time.Duration
}

// NewStallDetector returns a storage that gives up an operation when nothing has moved for the limit, and tries it again. In the
// end the error is ErrUnreachable. Something moves when a byte of a blob does, or when an HTTP request gets a connection, is sent,
// or is answered, even with an error or with the news that the server is still at it: repeating what is refused is up to the
// storage. The storage must heed its context.
func NewStallDetector(st blob.Storage, limit time.Duration) blob.Storage {
	return &stallDetector{st, limit}
}

func (s *stallDetector) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	return s.retryStalled(ctx, fmt.Sprintf("store blob %s", id), func(ctx context.Context, p *stallTimer) error {
		return s.Storage.PutBlob(ctx, id, watchedBytes{data, p}, o)
	})
}

func (s *stallDetector) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	return s.retryStalled(ctx, fmt.Sprintf("read blob %s", id), func(ctx context.Context, p *stallTimer) error {
		return s.Storage.GetBlob(ctx, id, offset, length, watchedBuffer{out, p})
	})
}

func (s *stallDetector) GetMetadata(ctx context.Context, id blob.ID) (m blob.Metadata, err error) {
	err = s.retryStalled(ctx, fmt.Sprintf("look for blob %s", id), func(ctx context.Context, _ *stallTimer) error {
		m, err = s.Storage.GetMetadata(ctx, id)
		return err
	})
	return m, err
}

func (s *stallDetector) DeleteBlob(ctx context.Context, id blob.ID) error {
	return s.retryStalled(ctx, fmt.Sprintf("delete blob %s", id), func(ctx context.Context, _ *stallTimer) error {
		return s.Storage.DeleteBlob(ctx, id)
	})
}

func (s *stallDetector) ExtendBlobRetention(ctx context.Context, id blob.ID, o blob.ExtendOptions) error {
	return s.retryStalled(ctx, fmt.Sprintf("extend the lock of blob %s", id), func(ctx context.Context, _ *stallTimer) error {
		return s.Storage.ExtendBlobRetention(ctx, id, o)
	})
}

// ListBlobs tries again only if call has not been called yet, because call must not be told of a blob twice.
func (s *stallDetector) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	told := false
	return s.retryStalledWhile(ctx, fmt.Sprintf("list blobs %s*", prefix), func() bool { return !told }, func(ctx context.Context, p *stallTimer) error {
		return s.Storage.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
			told = true
			p.pause() // The caller may take its time.
			defer p.resume()
			return call(m)
		})
	})
}

// retryStalled calls f until it ends in another way than by a stall, but at most stallAttempts times.
func (s *stallDetector) retryStalled(ctx context.Context, what string, f func(context.Context, *stallTimer) error) error {
	return s.retryStalledWhile(ctx, what, func() bool { return true }, f)
}

func (s *stallDetector) retryStalledWhile(ctx context.Context, what string, again func() bool, f func(context.Context, *stallTimer) error) error {
	attempts := StallAttempts
	if isSentAgain(ctx) {
		attempts = 1
	}
	for attempt := 1; ; attempt++ {
		err := s.attemptOnce(ctx, f)
		switch {
		case !errors.Is(err, errStalled):
			return err
		case attempt == attempts || !again():
			return s.unreachableError(what, attempt)
		}
	}
}

func (s *stallDetector) unreachableError(what string, attempts int) error {
	return fmt.Errorf("%w from %s: %s: nothing moved for %s, attempts: %d", ErrUnreachable, Describe(s.Storage.ConnectionInfo()), what, s.limit, attempts)
}

// attemptOnce calls f. It returns errStalled if a stall ended f.
func (s *stallDetector) attemptOnce(ctx context.Context, f func(context.Context, *stallTimer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &stallTimer{limit: s.limit, timer: time.AfterFunc(s.limit, func() { cancel(errStalled) })}
	defer p.pause()
	err := f(httptrace.WithClientTrace(ctx, p.clientTrace()), p)
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// stallTimer ends an attempt unless it hears in time that something has moved. It is safe for concurrent use.
type stallTimer struct {
	limit time.Duration

	mu     sync.Mutex
	timer  *time.Timer
	paused bool
}

func (p *stallTimer) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.paused {
		p.timer.Reset(p.limit)
	}
}

// pause stops the clock until resume.
func (p *stallTimer) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = true
	p.timer.Stop()
}

func (p *stallTimer) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = false
	p.timer.Reset(p.limit)
}

// clientTrace reports what requests do besides moving a blob's bytes.
func (p *stallTimer) clientTrace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { p.restart() },
		WroteRequest:         func(httptrace.WroteRequestInfo) { p.restart() },
		GotFirstResponseByte: p.restart,
		Got1xxResponse: func(int, textproto.MIMEHeader) error { // The server is still at it.
			p.restart()
			return nil
		},
	}
}

// watchedBuffer receives a blob.
type watchedBuffer struct {
	blob.OutputBuffer

	timer *stallTimer
}

func (b watchedBuffer) Write(data []byte) (int, error) {
	b.timer.restart()
	return b.OutputBuffer.Write(data)
}

// watchedBytes is a blob that is being sent.
type watchedBytes struct {
	blob.Bytes

	timer *stallTimer
}

// Reader returns a reader that has ReadAt if that of the blob has. Without ReadAt the S3 client sends a copy, and nobody sees its
// progress.
func (b watchedBytes) Reader() io.ReadSeekCloser {
	r := watchedReader{b.Bytes.Reader(), b.timer}
	if at, ok := r.ReadSeekCloser.(io.ReaderAt); ok {
		return watchedReaderAt{r, at}
	}
	return r
}

type watchedReader struct {
	io.ReadSeekCloser

	timer *stallTimer
}

func (r watchedReader) Read(data []byte) (int, error) {
	r.timer.restart()
	return r.ReadSeekCloser.Read(data)
}

type watchedReaderAt struct {
	watchedReader

	at io.ReaderAt
}

func (r watchedReaderAt) ReadAt(data []byte, offset int64) (int, error) {
	r.timer.restart()
	return r.at.ReadAt(data, offset)
}
