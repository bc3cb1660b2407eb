package progress_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/cli/progress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded is what one backup of a virtual machine went through.
var recorded = []progress.Report{
	{Name: "nightly", Phase: "Pending", Message: "claim backups does not exist: create it"},
	{Name: "nightly", Phase: "Pending", Message: "claim backups does not exist: create it"},
	{Name: "nightly", Phase: "Attaching"},
	{Name: "nightly", Phase: "Copying", Message: "data moves", Percent: 0, ProcessedBytes: 1 << 20, TotalBytes: 3 << 30},
	{Name: "nightly", Phase: "Copying", Message: "data moves", Percent: 0, ProcessedBytes: 2 << 20, TotalBytes: 3 << 30},
	{Name: "nightly", Phase: "Copying", Message: "data moves", Percent: 42, ProcessedBytes: 1288490189, TotalBytes: 3 << 30},
	{Name: "nightly", Phase: "Done", Percent: 100, ProcessedBytes: 3 << 30, TotalBytes: 3 << 30},
}

func show(t *testing.T, mode progress.Mode, terminal bool) string {
	t.Helper()
	var out bytes.Buffer
	r, err := progress.New(mode, &out, terminal)
	if err != nil {
		t.Fatal(err)
	}
	for _, report := range recorded {
		r.Show(report)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestPlain(t *testing.T) {
	t.Parallel()
	want := `nightly: Pending claim backups does not exist: create it
nightly: Attaching
nightly: Copying data moves 0% 1 MiB of 3 GiB
nightly: Copying data moves 42% 1.2 GiB of 3 GiB
nightly: Done 100% 3 GiB of 3 GiB
`
	if diff := cmp.Diff(want, show(t, progress.Plain, true)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, show(t, progress.Auto, false)); diff != "" {
		t.Errorf("auto without a terminal is not plain: %s", diff)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var got []progress.Report
	for line := range strings.Lines(show(t, progress.JSON, true)) {
		var r progress.Report
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		got = append(got, r)
	}
	want := []progress.Report{recorded[0], recorded[2], recorded[3], recorded[5], recorded[6]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNone(t *testing.T) {
	t.Parallel()
	if got := show(t, progress.None, true); got != "" {
		t.Errorf("wrote %q", got)
	}
}

// The bar draws asynchronously: what must hold is that it ends, and leaves nothing behind it but control sequences.
func TestBarEnds(t *testing.T) {
	t.Parallel()
	for _, mode := range []progress.Mode{progress.Bar, progress.Auto} {
		if got := show(t, mode, true); strings.Contains(got, "nightly: ") {
			t.Errorf("%s on a terminal wrote plain lines: %q", mode, got)
		}
	}
}

// screen takes what is drawn, and says when something has appeared.
type screen struct {
	mutex sync.Mutex
	text  string
	want  string
	seen  chan struct{}
}

func (s *screen) Write(p []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	before := strings.Contains(s.text, s.want)
	s.text += string(p)
	if !before && strings.Contains(s.text, s.want) {
		close(s.seen)
	}
	return len(p), nil
}

func TestBarShowsTheLastReport(t *testing.T) {
	t.Parallel()
	s := &screen{want: " 42% 1.2 GiB of 3 GiB", seen: make(chan struct{})}
	r, err := progress.New(progress.Bar, s, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, report := range recorded[:6] {
		r.Show(report)
	}
	select {
	case <-s.seen:
	case <-time.After(30 * time.Second):
		t.Errorf("drawn: %q", s.text)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"nightly Copying", "[=", "]"} {
		if !strings.Contains(s.text, want) {
			t.Errorf("%q is not in %q", want, s.text)
		}
	}
}

func TestUnknownMode(t *testing.T) {
	t.Parallel()
	if _, err := progress.New("loud", &bytes.Buffer{}, true); err == nil || !strings.Contains(err.Error(), "auto, bar, plain, json, none") {
		t.Errorf("err = %v", err)
	}
}

type broken struct{}

var errBroken = errors.New("broken pipe")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestCloseReportsWriteError(t *testing.T) {
	t.Parallel()
	r, err := progress.New(progress.Plain, broken{}, false)
	if err != nil {
		t.Fatal(err)
	}
	r.Show(recorded[0])
	if err := r.Close(); !errors.Is(err, errBroken) {
		t.Errorf("Close = %v", err)
	}
}

func TestPercent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		processed, total int64
		want             int
	}{{0, 0, 0}, {5, 0, 0}, {1, 3, 33}, {3, 3, 100}, {4, 3, 100}, {-1, 3, 0}, {1<<62 - 1, 1 << 62, 100}} {
		if got := progress.Percent(c.processed, c.total); got != c.want {
			t.Errorf("Percent(%d, %d) = %d, want %d", c.processed, c.total, got, c.want)
		}
	}
}
