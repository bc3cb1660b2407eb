package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Progress reports progress to a person, one line per step with the seconds since the command started.
type Progress struct {
	w     io.Writer
	start time.Time
}

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w, start: time.Now()} }

// Say prints one line.
func (p *Progress) Say(format string, args ...any) {
	// A lost progress line changes nothing about the box.
	_, _ = fmt.Fprintf(p.w, "[%5.1fs] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// giveUpError wraps a failure that more waiting does not fix.
type giveUpError struct{ error }

func (e giveUpError) Unwrap() error { return e.error }

// awaitCheck polls until check succeeds. If the limit passes, or check gives up, the error says what it waited for, why
// the last check failed, and how the given log ends.
func awaitCheck(ctx context.Context, what string, limit time.Duration, log string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if giveUp := (giveUpError{}); errors.As(err, &giveUp) {
			return fmt.Errorf("wait for %s: %w%s", what, err, logTail(log))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: not within %s: %w%s", what, limit, err, logTail(log))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// logTail quotes the end of a log, for an error message.
func logTail(path string) string {
	const most = 4 << 10 // bytes
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // read only
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil || len(bytes.TrimSpace(data)) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) > 12 {
		lines = lines[len(lines)-12:]
	}
	for i, l := range lines {
		lines[i] = l[:min(len(l), 300)]
	}
	return fmt.Sprintf("\nthe end of %s:\n  %s", path, strings.Join(lines, "\n  "))
}
