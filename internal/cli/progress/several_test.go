package progress_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/cli/progress"
)

// Reports of several disks come in turns. Each has its own lines, a few of them, and its own rate.
func TestSeveral_linesCountForThemselves(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := &clock{now: time.Unix(1000, 0)}
	r, err := progress.NewSeveral(progress.Plain, &out, false, c.Now)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(100) {
		for n, name := range []string{"root", "data"} {
			r.Show(progress.Report{Name: name, Phase: "Pulling", Percent: int(i), ProcessedBytes: i * int64(n+1) << 20, TotalBytes: 200 << 20})
		}
		c.now = c.now.Add(200 * time.Millisecond)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "root: Pulling") || !strings.HasPrefix(lines[1], "data: Pulling") ||
		!strings.Contains(lines[4], " 5 MiB/s") || !strings.Contains(lines[5], " 10 MiB/s") {
		t.Errorf("%q", lines)
	}
	if _, err := progress.NewSeveral("loud", &out, false, c.Now); err == nil {
		t.Error("an unknown mode was accepted")
	}
}

// On a terminal, each has a bar of its own, and all are gone at the end.
func TestSeveral_barForEach(t *testing.T) {
	t.Parallel()
	s := &screen{want: "second", seen: make(chan struct{})}
	r, err := progress.NewSeveral(progress.Auto, s, true, (&clock{now: time.Unix(1000, 0)}).Now)
	if err != nil {
		t.Fatal(err)
	}
	r.Show(progress.Report{Name: "first", Phase: "Pulling", ProcessedBytes: 1 << 20, TotalBytes: 2 << 20})
	r.Show(progress.Report{Name: "second", Phase: "Pulling", ProcessedBytes: 1 << 20, TotalBytes: 4 << 20})
	select {
	case <-s.seen:
	case <-time.After(30 * time.Second):
		t.Errorf("drawn: %q", s.end())
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.text, "first") {
		t.Errorf("the first bar is not drawn: %q", s.text)
	}
}
