package moverpod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// follower knows how the object stands. None of what it waits for can be taken back, so it does not matter in which order it hears of
// changes. It is safe for concurrent use.
type follower struct {
	objects *objectClient
	pod     types.UID // this one
	log     *slog.Logger
	retry   time.Duration

	// Closed when the object is InProgress, is canceled, and has ended in whatever way.
	started, canceled, over chan struct{}

	mu       sync.Mutex
	why      string // why it is over
	progress velerov2.Progress
	noted    bool // a pod has left a note
	// blockSize is the object\'s, which does not change.
	blockSize string
	failure   error // of the latest request; nil if it has succeeded
}

func newFollower(objects *objectClient, pod types.UID, log *slog.Logger, retry time.Duration) *follower {
	return &follower{objects: objects, pod: pod, log: log, retry: retry, started: make(chan struct{}), canceled: make(chan struct{}), over: make(chan struct{})}
}

// run follows the object until ctx ends or the object does.
func (f *follower) run(ctx context.Context) {
	for {
		err := f.objects.watch(ctx, func() error {
			// Only now: what happens from here on is in the watch.
			o, err := f.objects.read(ctx)
			if err == nil {
				f.note(o)
			}
			return err
		}, f.note)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errGone) {
			f.noteGone()
			return
		}
		f.noteFailure(err)
		if !pause(ctx, f.retry) {
			return
		}
	}
}

// note takes in the object as it was at some time.
func (f *follower) note(o object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = nil
	if o.progress.BytesDone > f.progress.BytesDone {
		f.progress = o.progress
	}
	f.noted, f.blockSize = f.noted || o.note != "", o.blockSize
	if o.phase == velerov2.PhaseInProgress {
		closeOnce(f.started)
	}
	if o.cancel {
		closeOnce(f.canceled)
	}
	if why := whyOver(o, f.pod); why != "" {
		f.endLocked(why)
	}
}

// whyOver says why nothing is left for a pod to do for an object, or returns "". The report of a pod that was given up counts for nothing.
func whyOver(o object, pod types.UID) string {
	if o.phase.Ended() {
		return fmt.Sprintf("it has ended as %s", o.phase)
	}
	if o.report == "" {
		return ""
	}
	report, err := datamove.DecodeReport(o.report)
	if err != nil {
		return "it has a report that cannot be read"
	}
	if report.Pod != pod && report.Pod != o.counted {
		return ""
	}
	return fmt.Sprintf("pod %s has reported %s", report.Pod, report.Outcome)
}

func (f *follower) noteGone() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked(errGone.Error())
}

func (f *follower) endLocked(why string) {
	if f.why == "" {
		f.why = why
	}
	closeOnce(f.over)
}

// noteFailure takes in that a request has failed. err is nil if a watch has ended in order.
func (f *follower) noteFailure(err error) {
	f.mu.Lock()
	first := err != nil && f.failure == nil
	f.failure = err
	f.mu.Unlock()
	if first {
		f.log.Warn("the API server does not answer as it should; trying again", "error", err)
	}
}

// errOver: nothing is left to do for the object.
var errOver = errors.New("it is over")

// overError says why the object is over.
func (f *follower) overError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &overError{f.why}
}

type overError struct{ why string }

func (e *overError) Error() string { return e.why }
func (e *overError) Unwrap() error { return errOver }

// lastFailure returns the latest failure, as the end of a sentence.
func (f *follower) lastFailure() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure == nil {
		return ""
	}
	return "; " + f.failure.Error()
}

// seenProgress returns the most progress that the object had.
func (f *follower) seenProgress() velerov2.Progress {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress
}

// hasNote says whether the object had the note of a pod that may be gone.
func (f *follower) hasNote() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.noted
}

// askedBlockSize returns the block size that the object asks for, or "".
func (f *follower) askedBlockSize() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blockSize
}

// closeOnce closes a channel that is closed under the same lock always.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// pause waits. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
