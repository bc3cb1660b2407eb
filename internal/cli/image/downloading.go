package image

import (
	"context"
	"net"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/errclass"
)

// dialWith connects through a forwarder, whatever the address.
func dialWith(forward *cluster.Forwarder) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return forward.Dial(ctx) }
}

func (d *downloader) setProblem(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.problem = text
}

func (d *downloader) beginAttempt(from string, forward *cluster.Forwarder, cancel context.CancelCauseFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.from, d.forward, d.cancel, d.movedAt = from, forward, cancel, d.clock.Now()
}

func (d *downloader) endAttempt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forward, d.cancel = nil, nil
}

// watchTransfer shows how much has come, and ends an attempt when nothing moves.
func (d *downloader) watchTransfer(ctx context.Context, show func(progress.Report)) {
	everyTick(ctx, d.clock, func() {
		d.showReceived(show)
		d.endSilence()
	})
}

// showReceived shows how much is there, and why nothing comes.
func (d *downloader) showReceived(show func(progress.Report)) {
	d.mu.Lock()
	problem, from, begun := d.problem, d.from, d.begun
	d.mu.Unlock()
	r := progress.Report{Name: d.title, Phase: "Download", Message: problem}
	switch {
	case problem != "":
	case from == "":
		r.Message = "looks for a copy that is ready"
	case begun > 0:
		r.Message = "from " + from + ", goes on at " + human.Bytes(begun)
	default:
		r.Message = "from " + from
	}
	r.ProcessedBytes, r.TotalBytes = d.transfer.Done(), d.image.Status.Size
	r.Percent = progress.Percent(r.ProcessedBytes, r.TotalBytes)
	show(r)
}

// endSilence ends the attempt if nothing has moved for long: the way to the pod may have broken unnoticed.
func (d *downloader) endSilence() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel == nil {
		return
	}
	now := d.clock.Now()
	if moved := d.forward.Moved() + d.transfer.Done(); moved != d.moved {
		d.moved, d.movedAt = moved, now
	}
	if now.Sub(d.movedAt) >= silentTime {
		d.cancel(errclass.Errorf(errclass.Transient, "nothing has come for %s", human.Span(silentTime)))
		d.cancel = nil
	}
}
