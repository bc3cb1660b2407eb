package progress

import (
	"bytes"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/cupwriter"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/varvebackup/varve/internal/cli/human"
)

// fromFirstColumn moves the cursor to the first column before the cursor moves up to draw again: a terminal that shows
// ^C for an interrupt has left it behind that, and what is to its left would stay.
type fromFirstColumn struct{ io.Writer }

func (w fromFirstColumn) Write(p []byte) (int, error) {
	if !bytes.HasPrefix(p, []byte("\x1b[")) {
		return w.Writer.Write(p)
	}
	n, err := w.Writer.Write(append([]byte{'\r'}, p...))
	return max(n-1, 0), err
}

// bar draws with mpb. mpb's goroutine reads the last report, which Show replaces.
type bar struct {
	container *mpb.Progress
	// shared says that the container has other bars, too.
	shared bool
	line   *mpb.Bar
	// stored is the line below the bar, for a backup of disks. It is nil before the first report that has it.
	stored *mpb.Bar
	last   atomic.Pointer[Report]
	now    func() time.Time
	meter  meter
}

func newContainer(out io.Writer, terminal bool) *mpb.Progress {
	console := cupwriter.New(fromFirstColumn{out}, terminal)
	if file, is := out.(*os.File); is {
		console.SetTermFd(int(file.Fd()))
	}
	return mpb.New(mpb.WithConsoleWriter(console), mpb.WithAutoRefresh())
}

func newBar(container *mpb.Progress, now func() time.Time) *bar {
	b := &bar{container: container, now: now}
	b.last.Store(&Report{})
	b.line = b.container.New(0, mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
		mpb.PrependDecorators(decor.Any(b.formatHead)),
		mpb.AppendDecorators(decor.Any(b.formatTail), decor.Name("elapsed "), decor.Elapsed(decor.ET_STYLE_GO, decor.WCSyncWidthR)),
	)
	return b
}

func (b *bar) Show(r Report) {
	b.meter.addReport(b.now(), r)
	b.last.Store(&r)
	if r.TotalBytes > 0 {
		// One more than the real total: mpb ends a bar that reaches its total, and only Close may end it.
		b.line.SetTotal(r.TotalBytes+1, false)
		b.line.SetCurrent(min(r.ProcessedBytes, r.TotalBytes))
	}
	if r.Stored != nil && b.stored == nil {
		b.stored = b.container.New(0, mpb.NopStyle(), mpb.BarFillerTrim(), mpb.PrependDecorators(decor.Any(b.formatStored)))
	}
}

func (b *bar) Close() error {
	if b.stored != nil {
		b.stored.Abort(true)
	}
	b.line.Abort(true)
	if !b.shared {
		b.container.Wait()
	}
	return nil
}

// formatHead returns the name and the phase. Beside a bar, it takes at most a quarter of the line. mpb cuts off what
// does not fit.
func (b *bar) formatHead(s decor.Statistics) string {
	r := b.last.Load()
	name, phase := human.Line(r.Name), human.Line(r.Phase)
	if r.TotalBytes == 0 {
		phase = r.formatStep(": ")
		return shortenName(name, s.AvailableWidth/3) + " " + phase + " "
	}
	return shortenName(name, s.AvailableWidth/4-len(phase)) + " " + phase + " "
}

func (b *bar) formatTail(decor.Statistics) string {
	text := b.meter.withRate(b.now(), *b.last.Load()).formatAmount()
	if text == "" {
		return " "
	}
	return " " + text + ", "
}

func (b *bar) formatStored(decor.Statistics) string {
	if s := b.last.Load().Stored; s != nil {
		return s.String()
	}
	return ""
}

// leastName is how much of a name is shown on the narrowest terminal.
const leastName = 8

func shortenName(name string, width int) string { return human.Short(name, max(width, leastName)) }
