package repository

import (
	"sync"
	"time"

	"github.com/varvebackup/varve/internal/reporter"
	"github.com/varvebackup/varve/internal/repository/files"
)

// filesProgress adds up what is done. It is safe for concurrent use, and calls nobody with a lock held.
type filesProgress struct {
	reports *reporter.Reporter[FilesProgress]

	mu   sync.Mutex
	sum  FilesProgress
	last time.Time
}

func newFilesProgress(call func(FilesProgress)) *filesProgress {
	return &filesProgress{reports: reporter.New(call)}
}

// change changes the sum, and reports it if that is due.
func (p *filesProgress) change(change func(*FilesProgress)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.sum)
	if now := time.Now(); now.Sub(p.last) >= progressEvery { //nolint:forbidigo // how often a terminal is drawn
		p.last = now
		p.reports.Report(p.sum)
	}
}

func (p *filesProgress) setUploaded(n int64) {
	p.change(func(s *FilesProgress) { s.UploadedBytes = n })
}

func (p *filesProgress) addRead(n int64) { p.change(func(s *FilesProgress) { s.ReadBytes += n }) }

func (p *filesProgress) addDone(count, bytes int64) {
	p.change(func(s *FilesProgress) {
		s.DoneFiles += count
		s.DoneBytes += bytes
	})
}

func (p *filesProgress) setTotals(t files.Totals) {
	p.change(func(s *FilesProgress) { s.TotalFiles, s.TotalBytes = t.Files+t.Symlinks, t.Bytes+t.SymlinkBytes })
}

// setKnown notes the totals, and reports them in any case.
func (p *filesProgress) setKnown(t files.Totals) {
	p.setTotals(t)
	p.change(func(s *FilesProgress) { s.TotalKnown = true })
	p.reportEnd()
}

// restart forgets what was done, because it is done again.
func (p *filesProgress) restart() {
	p.change(func(s *FilesProgress) { s.DoneFiles, s.DoneBytes = 0, 0 })
}

// reportEnd reports the sum once more.
func (p *filesProgress) reportEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports.Report(p.sum)
}
