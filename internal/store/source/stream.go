package source

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/varvebackup/varve/internal/errclass"
)

// restartError means that a download broke at a byte, and cannot be continued there.
type restartError struct {
	offset int64
	err    error
}

func (e *restartError) Error() string {
	return fmt.Sprintf("the download broke at byte %d: %v", e.offset, e.err)
}
func (e *restartError) Unwrap() error { return e.err }

// stream reads the file on the server from the first byte to the last, and goes on after a connection breaks.
type stream struct {
	ctx      context.Context //nolint:containedctx // io.Reader passes none
	job      *job
	body     *answer
	version  version
	offset   int64
	failures int // in a row, without a byte between them
	// err is why the stream has ended, other than by the end of the file. Decompressors do not all return it as it is.
	err error
}

// openStream asks for the file.
func (j *job) openStream(ctx context.Context) (*stream, error) {
	s := &stream{ctx: ctx, job: j}
	for {
		body, err := j.remote.get(ctx, nil, 0, -1)
		if err == nil {
			if s.version, err = body.version(); err != nil {
				return nil, errors.Join(err, body.Close())
			}
			s.body = body
			j.progress.total.Store(max(0, s.version.bytes))
			return s, nil
		}
		if err := s.pause(err); err != nil {
			return nil, err
		}
	}
}

// pause waits before the next attempt, or returns an error if there is to be none.
func (s *stream) pause(err error) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if errclass.Of(err) != errclass.Transient {
		return err
	}
	s.failures++
	return s.job.pauseBeforeRetry(s.ctx, s.failures, s.offset, err)
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	for {
		n, err := s.readOnce(p)
		if n > 0 {
			s.failures = 0
			return n, nil
		}
		if err == nil || err == io.EOF { //nolint:errorlint // A wrapped io.EOF is another error.
			return 0, err
		}
		if errors.Is(err, errChanged) || !s.version.canContinue() {
			err = &restartError{offset: s.offset, err: err}
		} else {
			err = s.pause(err)
		}
		if err != nil {
			s.err = err
			return 0, err
		}
	}
}

// readOnce reads from the connection, and makes a new one if there is none. An error ends the connection.
func (s *stream) readOnce(p []byte) (int, error) {
	if s.body == nil {
		body, err := s.job.remote.get(s.ctx, &s.version, s.offset, -1)
		if err != nil {
			return 0, err
		}
		if err := body.checkSame(&s.version); err != nil {
			return 0, errors.Join(err, body.Close())
		}
		s.body = body
	}
	n, err := s.body.Read(p)
	s.offset += int64(n)
	s.job.progress.done.Store(s.offset)
	if err == io.EOF && s.version.bytes >= 0 && s.offset < s.version.bytes { //nolint:errorlint // as above
		err = errclass.Errorf(errclass.Transient, "the server sent %d of %d bytes", s.offset, s.version.bytes)
	}
	if err != nil && err != io.EOF { //nolint:errorlint // as above
		err = errors.Join(err, s.Close())
	}
	if n > 0 && err != io.EOF { //nolint:errorlint // as above
		return n, nil // The next call makes a new connection.
	}
	return n, err
}

// Close implements io.Closer.
func (s *stream) Close() error {
	if s.body == nil {
		return nil
	}
	err := s.body.Close()
	s.body = nil
	return err
}
