package repository

import (
	"sync"
	"time"
)

// progressEvery is how often Request.Progress is called at most.
const progressEvery = 200 * time.Millisecond

// progress adds up what the workers did.
type progress struct {
	call func(Progress)

	mu   sync.Mutex
	sum  Progress
	last time.Time
}

func newProgress(q *Request) *progress {
	p := &progress{call: q.Progress}
	for _, d := range q.Disks {
		p.sum.TotalBytes += d.Bytes
	}
	return p
}

func (p *progress) uploaded(n int64) { p.add(Progress{UploadedBytes: n}) }

// add counts d, and tells what the sum is if that is due.
func (p *progress) add(d Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum.ScannedBytes += d.ScannedBytes
	p.sum.ReadBytes += d.ReadBytes
	p.sum.ChangedBytes += d.ChangedBytes
	p.sum.UploadedBytes += d.UploadedBytes
	if now := time.Now(); now.Sub(p.last) >= progressEvery { //nolint:forbidigo // how often a terminal is drawn
		p.last = now
		p.call(p.sum)
	}
}

// end tells the sum once more.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.call(p.sum)
}
