package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/kopia/kopia/repo/blob"
)

const (
	// stallLimit is how long a request may go without a sign of life. What is sent last waits in the system's buffers; on a line
	// of 300 kbit/s that is a minute.
	stallLimit = 2 * time.Minute
	// stallAttempts is how often an operation that stalls is tried. When a network path breaks, all open connections are dead; a
	// new one may work.
	stallAttempts = 3
)

// errStalled ends an attempt in which nothing has moved.
var errStalled = errors.New("nothing moved")

// stalling is a storage whose requests do not wait forever for a silent server. kopia's S3 client has no limit of its own.
type stalling struct {
	blob.Storage

	limit time.Duration
}

// newStalling returns a storage that gives up an operation when nothing has moved for the limit, and tries it again. In the end
// the error is ErrUnreachable. Something moves when a byte of a blob does, or when an HTTP request gets a connection, is sent, or
// is answered, even with an error: repeating what is refused is up to the storage. The storage must heed its context.
func newStalling(st blob.Storage, limit time.Duration) blob.Storage { return &stalling{st, limit} }

func (s *stalling) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	return s.try(ctx, fmt.Sprintf("store blob %s", id), func(ctx context.Context, p *pulse) error {
		return s.Storage.PutBlob(ctx, id, movingBytes{data, p}, o)
	})
}

func (s *stalling) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	return s.try(ctx, fmt.Sprintf("read blob %s", id), func(ctx context.Context, p *pulse) error {
		return s.Storage.GetBlob(ctx, id, offset, length, movingBuffer{out, p})
	})
}

func (s *stalling) GetMetadata(ctx context.Context, id blob.ID) (m blob.Metadata, err error) {
	err = s.try(ctx, fmt.Sprintf("look for blob %s", id), func(ctx context.Context, _ *pulse) error {
		m, err = s.Storage.GetMetadata(ctx, id)
		return err
	})
	return m, err
}

func (s *stalling) DeleteBlob(ctx context.Context, id blob.ID) error {
	return s.try(ctx, fmt.Sprintf("delete blob %s", id), func(ctx context.Context, _ *pulse) error {
		return s.Storage.DeleteBlob(ctx, id)
	})
}

func (s *stalling) ExtendBlobRetention(ctx context.Context, id blob.ID, o blob.ExtendOptions) error {
	return s.try(ctx, fmt.Sprintf("extend the lock of blob %s", id), func(ctx context.Context, _ *pulse) error {
		return s.Storage.ExtendBlobRetention(ctx, id, o)
	})
}

// ListBlobs tries again only if call has not been called yet, because call must not be told of a blob twice.
func (s *stalling) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	told := false
	return s.tryWhile(ctx, fmt.Sprintf("list blobs %s*", prefix), func() bool { return !told }, func(ctx context.Context, p *pulse) error {
		return s.Storage.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
			told = true
			p.pause() // The caller may take its time.
			defer p.resume()
			return call(m)
		})
	})
}

// try calls f until it ends in another way than by a stall, but at most stallAttempts times.
func (s *stalling) try(ctx context.Context, what string, f func(context.Context, *pulse) error) error {
	return s.tryWhile(ctx, what, func() bool { return true }, f)
}

func (s *stalling) tryWhile(ctx context.Context, what string, again func() bool, f func(context.Context, *pulse) error) error {
	for attempt := 1; ; attempt++ {
		err := s.once(ctx, f)
		switch {
		case !errors.Is(err, errStalled):
			return err
		case attempt == stallAttempts || !again():
			return s.unreachable(what, attempt)
		}
	}
}

func (s *stalling) unreachable(what string, attempts int) error {
	return fmt.Errorf("%w from %s: %s: nothing moved for %s, attempts: %d", ErrUnreachable, location(s.Storage.ConnectionInfo()), what, s.limit, attempts)
}

// once calls f. It returns errStalled if a stall ended f.
func (s *stalling) once(ctx context.Context, f func(context.Context, *pulse) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &pulse{limit: s.limit, timer: time.AfterFunc(s.limit, func() { cancel(errStalled) })}
	defer p.pause()
	err := f(httptrace.WithClientTrace(ctx, p.trace()), p)
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// pulse ends an attempt unless it hears in time that something has moved. It is safe for concurrent use.
type pulse struct {
	limit time.Duration

	mu     sync.Mutex
	timer  *time.Timer
	paused bool
}

func (p *pulse) moved() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.paused {
		p.timer.Reset(p.limit)
	}
}

// pause stops the clock until resume.
func (p *pulse) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = true
	p.timer.Stop()
}

func (p *pulse) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = false
	p.timer.Reset(p.limit)
}

// trace reports what requests do besides moving a blob's bytes.
func (p *pulse) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { p.moved() },
		WroteRequest:         func(httptrace.WroteRequestInfo) { p.moved() },
		GotFirstResponseByte: p.moved,
	}
}

// movingBuffer receives a blob.
type movingBuffer struct {
	blob.OutputBuffer

	pulse *pulse
}

func (b movingBuffer) Write(data []byte) (int, error) {
	b.pulse.moved()
	return b.OutputBuffer.Write(data)
}

// movingBytes is a blob that is being sent.
type movingBytes struct {
	blob.Bytes

	pulse *pulse
}

// Reader returns a reader that has ReadAt if that of the blob has. Without ReadAt the S3 client sends a copy, and nobody sees its
// progress.
func (b movingBytes) Reader() io.ReadSeekCloser {
	r := movingReader{b.Bytes.Reader(), b.pulse}
	if at, ok := r.ReadSeekCloser.(io.ReaderAt); ok {
		return movingReaderAt{r, at}
	}
	return r
}

type movingReader struct {
	io.ReadSeekCloser

	pulse *pulse
}

func (r movingReader) Read(data []byte) (int, error) {
	r.pulse.moved()
	return r.ReadSeekCloser.Read(data)
}

type movingReaderAt struct {
	movingReader

	at io.ReaderAt
}

func (r movingReaderAt) ReadAt(data []byte, offset int64) (int, error) {
	r.pulse.moved()
	return r.at.ReadAt(data, offset)
}
