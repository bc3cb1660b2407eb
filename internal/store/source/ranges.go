package source

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// rangeBytes is how much one request asks for.
	rangeBytes = 2 << 20
	// cachedRanges is how many ranges are kept.
	cachedRanges = 32
	// rangeReaders is how many requests run at once.
	rangeReaders = 8
)

// ranges is the file on the server, in one version, as a disk that QEMU reads anywhere. It is a nbd.Backend.
type ranges struct {
	job     *job
	version version

	mu     sync.Mutex
	cached map[int64]*cachedRange
	oldest []int64 // numbers of what is cached, the oldest first
	err    error   // the first error, which QEMU does not get to see
}

// cachedRange is a range that is being read or was read. data and err are set before ready is closed.
type cachedRange struct {
	ready chan struct{}
	data  []byte
	err   error
}

func newRanges(j *job, v *version) *ranges {
	return &ranges{job: j, version: *v, cached: map[int64]*cachedRange{}}
}

// Size implements nbd.Backend.
func (r *ranges) Size() int64 { return r.version.bytes }

// ReadAt implements nbd.Backend.
func (r *ranges) ReadAt(ctx context.Context, p []byte, offset int64) error {
	for len(p) > 0 {
		number := offset / rangeBytes
		data, err := r.read(ctx, number)
		if err != nil {
			return err
		}
		n := copy(p, data[offset-number*rangeBytes:])
		p, offset = p[n:], offset+int64(n)
	}
	return nil
}

// read returns a range from the cache or from the server.
func (r *ranges) read(ctx context.Context, number int64) ([]byte, error) {
	r.mu.Lock()
	c := r.cached[number]
	if c != nil {
		r.mu.Unlock()
		select {
		case <-c.ready:
			return c.data, c.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	c = &cachedRange{ready: make(chan struct{})}
	r.cached[number] = c
	r.oldest = append(r.oldest, number)
	if len(r.oldest) > cachedRanges {
		delete(r.cached, r.oldest[0])
		r.oldest = slices.Delete(r.oldest, 0, 1)
	}
	r.mu.Unlock()
	c.data, c.err = r.fetch(ctx, number)
	if c.err != nil {
		r.fail(c.err)
	}
	close(c.ready)
	return c.data, c.err
}

func (r *ranges) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

// cause returns the first error of the server. If the file has changed, the image has to be written anew.
func (r *ranges) cause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(r.err, errChanged) {
		return &restartError{offset: r.job.progress.done.Load(), err: r.err}
	}
	return r.err
}

// fetch reads a range from the server.
func (r *ranges) fetch(ctx context.Context, number int64) ([]byte, error) {
	first := number * rangeBytes
	data := make([]byte, min(rangeBytes, r.version.bytes-first))
	for read, failures := 0, 0; ; {
		n, err := r.fetchOnce(ctx, data[read:], first+int64(read))
		r.job.progress.done.Add(int64(n))
		if read += n; n > 0 {
			failures = 0
		}
		switch {
		case err == nil:
			return data, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, errChanged) || errclass.Of(err) != errclass.Transient:
			return nil, err
		}
		failures++
		if err := r.job.pauseBeforeRetry(ctx, failures, first+int64(read), err); err != nil {
			return nil, err
		}
	}
}

// fetchOnce fills data from the byte first on, and returns how much it has read.
func (r *ranges) fetchOnce(ctx context.Context, data []byte, first int64) (n int, err error) {
	body, err := r.job.remote.get(ctx, &r.version, first, first+int64(len(data))-1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	if err := body.checkSame(&r.version); err != nil {
		return 0, err
	}
	n, err = fill(body, data)
	if n == len(data) {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		err = errclass.Errorf(errclass.Transient, "the server sent %d of %d bytes", n, len(data))
	}
	return n, err
}
