package source

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/store/handover"
)

// reportEvery is how often the progress is recorded.
const reportEvery = time.Second

// progress is how much of the source was read, in bytes. Its methods may be called from any goroutine.
type progress struct{ done, total atomic.Int64 }

func (p *progress) reset() {
	p.done.Store(0)
	p.total.Store(0)
}

func (p *progress) record() handover.Record {
	return handover.Record{Done: p.done.Load(), Total: p.total.Load()}
}

// errEnded ends the reports.
var errEnded = errors.New("the work has ended")

// reportWhile calls work, and records its progress on the device meanwhile. When it returns, nothing writes any more.
func (j *job) reportWhile(ctx context.Context, work func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	ticker := j.options.Clock.NewTicker(reportEvery)
	defer ticker.Stop()
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C():
				record := j.progress.record()
				record.Waits = j.remote.isWaiting()
				if err := handover.Write(j.device, record); err != nil {
					return describeFull(err)
				}
			}
		}
	})
	group.Go(func() error {
		if err := work(ctx); err != nil {
			return err
		}
		return errEnded
	})
	if err := group.Wait(); !errors.Is(err, errEnded) {
		return err
	}
	return nil
}
