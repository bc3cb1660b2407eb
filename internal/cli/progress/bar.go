package progress

import (
	"fmt"
	"io"
	"sync/atomic"
	"unicode/utf8"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/varvebackup/varve/internal/cli/human"
)

// bar draws with mpb: its goroutine reads the last report, Show replaces it.
type bar struct {
	container *mpb.Progress
	line      *mpb.Bar
	last      atomic.Pointer[Report]
}

// messageWidth keeps room for the bar itself on a terminal of 80 columns.
const messageWidth = 36

func newBar(out io.Writer, terminal bool) *bar {
	b := &bar{}
	b.last.Store(&Report{})
	options := []mpb.ContainerOption{mpb.WithOutput(out), mpb.WithAutoRefresh()}
	if terminal {
		options = append(options, mpb.ForceTTY())
	}
	b.container = mpb.New(options...)
	b.line = b.container.New(0, mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
		mpb.PrependDecorators(decor.Any(b.head)),
		mpb.AppendDecorators(decor.Any(b.tail), decor.Elapsed(decor.ET_STYLE_GO, decor.WCSyncSpaceR)),
	)
	return b
}

func (b *bar) Show(r Report) {
	b.last.Store(&r)
	if r.TotalBytes > 0 {
		// One more than the truth: a bar that reaches its total ends, and the end is Close's to say.
		b.line.SetTotal(r.TotalBytes+1, false)
		b.line.SetCurrent(min(r.ProcessedBytes, r.TotalBytes))
	}
}

func (b *bar) Close() error {
	b.line.Abort(true)
	b.container.Wait()
	return nil
}

func (b *bar) head(decor.Statistics) string {
	r := b.last.Load()
	text := human.Line(r.Name + " " + r.Phase)
	if r.TotalBytes == 0 && r.Message != "" {
		text += ": " + human.Line(r.Message)
	}
	return shorten(text, messageWidth) + " "
}

func (b *bar) tail(decor.Statistics) string {
	r := b.last.Load()
	if r.TotalBytes == 0 {
		return ""
	}
	return fmt.Sprintf(" %3d%% %s of %s ", r.Percent, human.Bytes(r.ProcessedBytes), human.Bytes(r.TotalBytes))
}

// shorten cuts text to width characters, the last of which then says so.
func shorten(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}
