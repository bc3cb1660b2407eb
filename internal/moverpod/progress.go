package moverpod

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// progress writes how much was moved on the object, once in an interval and at the end, and only what has changed. It never goes back,
// not even when the work begins anew: it begins with what the object has. It is safe for concurrent use.
type progress struct {
	objects  *objectClient
	follower *follower
	log      *slog.Logger
	limits   limits

	mu   sync.Mutex
	now  velerov2.Progress
	sent velerov2.Progress
}

func newProgress(objects *objectClient, f *follower, log *slog.Logger, l limits) *progress {
	return &progress{objects: objects, follower: f, log: log, limits: l}
}

// set notes that done of total bytes are moved.
func (p *progress) set(total, done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = velerov2.Progress{TotalBytes: total, BytesDone: min(total, max(done, p.now.BytesDone))}
}

// start begins to write. stop ends that after the request that is under way; write then writes what is new since.
func (p *progress) start(ctx context.Context) (stop func()) {
	p.mu.Lock()
	p.sent = p.follower.seenProgress()
	p.now = p.sent
	p.mu.Unlock()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p.writePeriodically(ctx, done)
	}()
	return sync.OnceFunc(func() { close(done); <-ended })
}

func (p *progress) writePeriodically(ctx context.Context, done <-chan struct{}) {
	ticker := time.NewTicker(p.limits.progress)
	defer ticker.Stop()
	lines := time.NewTicker(p.limits.logged)
	defer lines.Stop()
	for {
		select {
		case <-done:
			return
		case <-p.follower.over:
			return
		case <-ctx.Done():
			return
		case <-lines.C:
			now := p.get()
			p.log.Info("moving", "bytesDone", now.BytesDone, "totalBytes", now.TotalBytes)
		case <-ticker.C:
			p.write(ctx)
		}
	}
}

func (p *progress) get() velerov2.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// write writes what is new, if anything is. Progress that is not written is no failure: the report counts.
func (p *progress) write(ctx context.Context) {
	p.mu.Lock()
	now, sent := p.now, p.sent
	p.mu.Unlock()
	if now == sent {
		return
	}
	o, err := p.objects.patch(ctx, "", nil, map[string]any{"progress": map[string]any{"totalBytes": now.TotalBytes, "bytesDone": now.BytesDone}})
	switch {
	case errors.Is(err, errGone):
		p.follower.noteGone()
	case err != nil:
		p.log.Debug("progress was not written", "error", err)
	default:
		p.follower.note(o) // The answer says whether it was canceled meanwhile.
		p.mu.Lock()
		p.sent = now
		p.mu.Unlock()
	}
}
