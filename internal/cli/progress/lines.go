package progress

import (
	"errors"
	"io"
	"time"
)

const (
	// plainEvery and jsonEvery are the shortest times between two lines that differ only in numbers: in a log for
	// people, and for a program.
	plainEvery = 10 * time.Second
	jsonEvery  = time.Second
)

// lines writes a line at once when a step begins (another name, phase or message) and one when it ends. In between, it
// writes one now and then while only the numbers change.
type lines struct {
	out    io.Writer
	format func(Report) ([]byte, error)
	every  time.Duration
	now    func() time.Time
	meter  meter

	// last was received at seen, shown was written at at.
	last, shown Report
	began       bool
	seen, at    time.Time
	err         error
}

func (l *lines) Show(r Report) {
	now := l.now()
	step := !l.began || r.Name != l.shown.Name || r.Phase != l.shown.Phase || r.Message != l.shown.Message
	if step && l.began {
		l.writeLast() // how far the previous step came
	}
	l.meter.addReport(now, r)
	l.last, l.seen = r, now
	if step || now.Sub(l.at) >= l.every {
		l.writeLast()
	}
}

// writeLast writes the last report, unless it was already written.
func (l *lines) writeLast() {
	if l.seen.IsZero() || l.began && l.last.isSame(l.shown) {
		return
	}
	l.shown, l.at, l.began = l.last, l.seen, true
	text, err := l.format(l.meter.withRate(l.seen, l.last))
	if err == nil {
		_, err = l.out.Write(append(text, '\n'))
	}
	l.err = errors.Join(l.err, err)
}

func (l *lines) Close() error {
	l.writeLast()
	return l.err
}
