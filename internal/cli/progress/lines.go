package progress

import (
	"errors"
	"io"
	"time"
)

const (
	// plainEvery and jsonEvery are the least times between two lines of which only the numbers differ: a log that people read, and a program.
	plainEvery = 10 * time.Second
	jsonEvery  = time.Second
)

// lines writes a line at once for a step, which has another name, phase or message, one at its end, and one now and then while only the
// numbers change.
type lines struct {
	out    io.Writer
	format func(Report) ([]byte, error)
	every  time.Duration
	now    func() time.Time
	meter  meter

	// last came at the time seen, shown was written at the time at.
	last, shown Report
	began       bool
	seen, at    time.Time
	err         error
}

func (l *lines) Show(r Report) {
	now := l.now()
	step := !l.began || r.Name != l.shown.Name || r.Phase != l.shown.Phase || r.Message != l.shown.Message
	if step && l.began {
		l.write() // how far the step before came
	}
	l.meter.observe(now, r)
	l.last, l.seen = r, now
	if step || now.Sub(l.at) >= l.every {
		l.write()
	}
}

// write writes the last report, unless it was.
func (l *lines) write() {
	if l.seen.IsZero() || l.began && l.last.same(l.shown) {
		return
	}
	l.shown, l.at, l.began = l.last, l.seen, true
	text, err := l.format(l.meter.measured(l.seen, l.last))
	if err == nil {
		_, err = l.out.Write(append(text, '\n'))
	}
	l.err = errors.Join(l.err, err)
}

func (l *lines) Close() error {
	l.write()
	return l.err
}
