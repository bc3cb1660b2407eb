package mover

import (
	"sync"

	"github.com/varvebackup/varve/internal/repository"
)

// Phase is a part of a job, in the words that people see.
type Phase string

// The phases.
const (
	// PhaseOpening and PhaseStoring are those of a backup.
	PhaseOpening Phase = "Opening"
	PhaseStoring Phase = "Storing"
	// PhaseWriting is that of a restore.
	PhaseWriting Phase = "Writing"
	// PhaseReading and PhaseChecking are those of a verification: of the data, and of the blocks' places.
	PhaseReading  Phase = "Reading"
	PhaseChecking Phase = "Checking"
)

// Progress is how far a job is.
type Progress struct {
	Phase Phase
	// ProcessedBytes of TotalBytes are done. Both are 0 in a phase that counts nothing.
	ProcessedBytes, TotalBytes int64
	// Backup has more about PhaseStoring; nil in every other phase.
	Backup *repository.Progress
}

// reporter hands the latest progress to a callback. It calls from a goroutine of its own, so that no lock is held during
// the call, and a slow callback delays no work. The callback misses what is reported faster than it returns,
// except for the last report.
type reporter struct {
	call func(Progress)
	// due wakes the goroutine. ended is closed when it ends.
	due, ended chan struct{}

	mu      sync.Mutex
	latest  Progress
	pending bool
	stopped bool
}

// startReporter returns a reporter for a callback, which may be nil. stop must be called.
func startReporter(call func(Progress)) *reporter {
	r := &reporter{call: call, due: make(chan struct{}, 1), ended: make(chan struct{})}
	go r.run()
	return r
}

func (r *reporter) run() {
	defer close(r.ended)
	for range r.due {
		r.mu.Lock()
		latest, pending := r.latest, r.pending
		r.pending = false
		r.mu.Unlock()
		if pending && r.call != nil {
			r.call(latest)
		}
	}
}

// report makes p the latest progress. It does not wait, and may be called from several goroutines. After stop it does
// nothing.
func (r *reporter) report(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	r.latest, r.pending = p, true
	select {
	case r.due <- struct{}{}:
	default: // The goroutine has yet to see what woke it last.
	}
}

// stop returns when the callback has returned from the last report.
func (r *reporter) stop() {
	r.mu.Lock()
	r.stopped = true
	close(r.due)
	r.mu.Unlock()
	<-r.ended
}
