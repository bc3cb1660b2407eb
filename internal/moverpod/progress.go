package moverpod

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// progress writes how much was moved on the object: at each percent and in longer intervals, and at the end, and only
// what has changed. It never goes back, not even when the work begins anew: it begins with what the object has. It
// also writes what the work waits for, as a datamove.Note. It is safe for concurrent use.
type progress struct {
	// patch is objectClient.patch.
	patch    func(ctx context.Context, version string, metadata, status map[string]any) (object, error)
	follower *follower
	log      *slog.Logger
	limits   limits

	mu   sync.Mutex
	now  progressState
	sent progressState
}

// progressState is what progress writes.
type progressState struct {
	moved velerov2.Progress
	// note is a Note, encoded; "": none.
	note string
}

// unknownNote is no note that a pod leaves.
const unknownNote = "?"

func newProgress(objects *objectClient, f *follower, log *slog.Logger, l limits) *progress {
	return &progress{patch: objects.patch, follower: f, log: log, limits: l}
}

// set notes that done of total bytes are moved.
func (p *progress) set(total, done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.moved = velerov2.Progress{TotalBytes: total, BytesDone: min(total, max(done, p.now.moved.BytesDone))}
}

// setBack notes that of total bytes only done are moved, which may be less than before.
func (p *progress) setBack(total, done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.moved = velerov2.Progress{TotalBytes: total, BytesDone: min(total, done)}
}

// setNote notes what the work waits for: a Note, encoded, or "".
func (p *progress) setNote(note string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.note = note
}

// start begins to write. stop ends that after the request that is under way; write then writes what is new since.
func (p *progress) start(ctx context.Context) (stop func()) {
	p.mu.Lock()
	p.sent = progressState{moved: p.follower.seenProgress()}
	p.now = p.sent
	if p.follower.hasNote() {
		p.sent.note = unknownNote // An earlier process has left it.
	}
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
	// What is left has waited for smallProgress when this is 0.
	left := p.limits.smallProgress
	for {
		select {
		case <-done:
			return
		case <-p.follower.over:
			return
		case <-ctx.Done():
			return
		case <-lines.C:
			now := p.current().moved
			p.log.Info("moving", "bytesDone", now.BytesDone, "totalBytes", now.TotalBytes)
		case <-ticker.C:
			left -= p.limits.progress
			if left <= 0 || p.isDue() {
				p.write(ctx)
				left = p.limits.smallProgress
			}
		}
	}
}

// isDue says whether something is new that is not to wait: another percent, the first that is known of the total, the
// beginning of a wait or its end.
func (p *progress) isDue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now.percentDone() != p.sent.percentDone() || p.now.moved.TotalBytes != p.sent.moved.TotalBytes ||
		(p.now.note == "") != (p.sent.note == "")
}

func (p *progress) current() progressState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// percentDone returns how many percent are done.
func (s progressState) percentDone() int64 {
	if s.moved.TotalBytes <= 0 {
		return 0
	}
	return s.moved.BytesDone * 100 / s.moved.TotalBytes
}

// write writes what is new, if anything is. Progress that is not written is no failure: the report counts.
func (p *progress) write(ctx context.Context) {
	p.mu.Lock()
	now, sent := p.now, p.sent
	p.mu.Unlock()
	if now == sent {
		return
	}
	o, err := p.patch(ctx, "", now.changedMetadata(sent), now.changedStatus(sent))
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

// changedStatus returns the fields of the status that are not as sent has them; nil: none.
func (s progressState) changedStatus(sent progressState) map[string]any {
	if s.moved == sent.moved {
		return nil
	}
	return map[string]any{"progress": map[string]any{"totalBytes": s.moved.TotalBytes, "bytesDone": s.moved.BytesDone}}
}

// changedMetadata returns the fields of the metadata that are not as sent has them; nil: none.
func (s progressState) changedMetadata(sent progressState) map[string]any {
	if s.note == sent.note {
		return nil
	}
	var note any // nil removes it
	if s.note != "" {
		note = s.note
	}
	return map[string]any{"annotations": map[string]any{datamove.AnnotationNote: note}}
}
