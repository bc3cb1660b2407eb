package mover

import (
	"context"
	"errors"

	"golang.org/x/time/rate"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/repository"
)

const (
	// burstsPerSecond is how often a rate limit lets bytes through, at least: what was not used in that time is lost.
	burstsPerSecond = 10
	// minBurstBytes keeps a small limit from becoming many small waits.
	minBurstBytes = 64 << 10
)

// RateLimit bounds how many bytes per second jobs read from their sources, or write to their destinations. Jobs that
// share a limit share its bytes. It is safe for concurrent use. A nil limit lets everything through.
type RateLimit struct{ limiter *rate.Limiter }

// NewRateLimit returns a limit of so many bytes per second, or nil for 0.
func NewRateLimit(bytesPerSecond int64) *RateLimit {
	if bytesPerSecond <= 0 {
		return nil
	}
	burst := max(bytesPerSecond/burstsPerSecond, minBurstBytes)
	return &RateLimit{limiter: rate.NewLimiter(rate.Limit(bytesPerSecond), int(burst))}
}

// waitForBytes returns when so many bytes may pass, or when ctx ends.
func (l *RateLimit) waitForBytes(ctx context.Context, bytes int) error {
	if l == nil {
		return nil
	}
	for bytes > 0 {
		n := min(bytes, l.limiter.Burst())
		if err := l.limiter.WaitN(ctx, n); err != nil {
			if ctx.Err() == nil { // It does not wait at all if the deadline would pass meanwhile.
				return errors.Join(context.DeadlineExceeded, err)
			}
			return context.Cause(ctx)
		}
		bytes -= n
	}
	return nil
}

// limitedReader is a disk that is read within a limit.
type limitedReader struct {
	repository.Reader

	limit *RateLimit
}

func (r *limitedReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	if err := r.limit.waitForBytes(ctx, len(p)); err != nil {
		return err
	}
	return r.Reader.ReadAt(ctx, p, offset)
}

// limitedTarget is a target that is written within a limit. Zeroes do not count.
type limitedTarget struct {
	disk.Target

	limit *RateLimit
}

func (t *limitedTarget) WriteAt(ctx context.Context, p []byte, offset int64) error {
	if err := t.limit.waitForBytes(ctx, len(p)); err != nil {
		return err
	}
	return t.Target.WriteAt(ctx, p, offset)
}
