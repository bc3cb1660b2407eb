package progress_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/cli/progress"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded has the reports of one backup of a virtual machine.
var recorded = []progress.Report{
	{Name: "nightly", Phase: "Pending", Message: "claim backups does not exist: create it"},
	{Name: "nightly", Phase: "Pending", Message: "claim backups does not exist: create it"},
	{Name: "nightly", Phase: "Attaching"},
	{Name: "nightly", Phase: "Copying", Message: "data moves", Percent: 0, ProcessedBytes: 0, TotalBytes: 3 << 30},
	{Name: "nightly", Phase: "Copying", Message: "data moves", Percent: 12, ProcessedBytes: 400 << 20, TotalBytes: 3 << 30},
	{Name: "nightly", Phase: "Copying", Message: "data moves", Percent: 26, ProcessedBytes: 800 << 20, TotalBytes: 3 << 30},
	{Name: "nightly", Phase: "Copying", Message: "data moves", Percent: 39, ProcessedBytes: 1200 << 20, TotalBytes: 3 << 30},
	{Name: "nightly", Phase: "Copying", Message: "data moves", Percent: 52, ProcessedBytes: 1600 << 20, TotalBytes: 3 << 30},
	{Name: "nightly", Phase: "Done", Percent: 100, ProcessedBytes: 3 << 30, TotalBytes: 3 << 30},
}

// clock stands still unless a test moves it.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// show shows the recorded reports, one every four seconds.
func show(t *testing.T, mode progress.Mode, terminal bool) string {
	t.Helper()
	var out bytes.Buffer
	c := &clock{now: time.Unix(1000, 0)}
	r, err := progress.New(mode, &out, terminal, c.Now)
	if err != nil {
		t.Fatal(err)
	}
	for _, report := range recorded {
		r.Show(report)
		c.now = c.now.Add(4 * time.Second)
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
nightly: Copying data moves 0% 0 B of 3 GiB
nightly: Copying data moves 39% 1.2 GiB of 3 GiB, 100 MiB/s, 19s left
nightly: Copying data moves 52% 1.6 GiB of 3 GiB, 100 MiB/s, 15s left
nightly: Done 100% 3 GiB of 3 GiB
`
	if diff := cmp.Diff(want, show(t, progress.Plain, true)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, show(t, progress.Auto, false)); diff != "" {
		t.Errorf("auto without a terminal is not plain: %s", diff)
	}
}

// Some messages of the cluster begin with the word that is the phase.
func TestPlain_saysThePhaseOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ phase, message, want string }{
		{"Attaching", "Attaching PersistentVolumeClaim backups", "a: Attaching PersistentVolumeClaim backups"},
		{"Attaching", "Attaching", "a: Attaching"},
		{"Attaching", "", "a: Attaching"},
		{"", "a word", "a: a word"},
		{"Attach", "Attaching a claim", "a: Attach Attaching a claim"},
	} {
		if got := (progress.Report{Name: "a", Phase: c.phase, Message: c.message}).String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
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
	// JSON has one every second, and these are four seconds apart.
	want := slices.Delete(slices.Clone(recorded), 1, 2)
	for i, left := range map[int]int64{3: 27, 4: 23, 5: 19, 6: 15} {
		want[i].BytesPerSecond, want[i].RemainingSeconds = 100<<20, left
	}
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

// The bar draws asynchronously. What must hold is that it ends, and leaves only control sequences behind.
func TestBarEnds(t *testing.T) {
	t.Parallel()
	for _, mode := range []progress.Mode{progress.Bar, progress.Auto} {
		if got := show(t, mode, true); strings.Contains(got, "nightly: ") {
			t.Errorf("%s on a terminal wrote plain lines: %q", mode, got)
		}
	}
}

// A terminal that shows ^C has moved the cursor: nothing that is drawn later may rely on the column where it was.
func TestBar_drawsFromTheFirstColumn(t *testing.T) {
	t.Parallel()
	got := show(t, progress.Bar, true)
	for i, part := range regexp.MustCompile("\x1b\\[[0-9]+A").Split(got, -1) {
		if i < strings.Count(got, "\x1b[J") && !strings.HasSuffix(part, "\n\r") {
			t.Errorf("the cursor goes up after %q", part)
		}
	}
	if !strings.Contains(got, "\r\x1b[") {
		t.Errorf("the cursor never goes up: %q", got)
	}
}

// screen receives what is drawn, and signals when a text has appeared.
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

// end returns what was drawn last.
func (s *screen) end() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.text[max(0, len(s.text)-500):]
}

func TestBarShowsTheLastReport(t *testing.T) {
	t.Parallel()
	s := &screen{want: " 39% 1.2 GiB of 3 GiB, 100 MiB/s, 19s left, elapsed ", seen: make(chan struct{})}
	now := time.Unix(1000, 0)
	var moment atomic.Int64 // the bar draws in a goroutine of its own
	r, err := progress.New(progress.Bar, s, true, func() time.Time { return now.Add(time.Duration(moment.Load())) })
	if err != nil {
		t.Fatal(err)
	}
	for i, report := range recorded[:7] {
		moment.Store(int64(i) * int64(4*time.Second))
		r.Show(report)
	}
	select {
	case <-s.seen:
	case <-time.After(30 * time.Second):
		t.Errorf("drawn: %q", s.end())
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
	if _, err := progress.New("loud", &bytes.Buffer{}, true, time.Now); err == nil || !strings.Contains(err.Error(), "auto, bar, plain, json, none") {
		t.Errorf("err = %v", err)
	}
}

type broken struct{}

var errBroken = errors.New("broken pipe")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestCloseReportsWriteError(t *testing.T) {
	t.Parallel()
	r, err := progress.New(progress.Plain, broken{}, false, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	r.Show(recorded[0])
	if err := r.Close(); !errors.Is(err, errBroken) {
		t.Errorf("Close = %v", err)
	}
}

// backup returns a report about a backup of disks.
func backup(processed int64) progress.Report {
	return progress.Report{
		Name: "web", Phase: "Storing", Percent: progress.Percent(processed, 4<<30), ProcessedBytes: processed, TotalBytes: 4 << 30,
		Stored: &progress.Stored{ScannedBytes: processed * 2, DiskBytes: 8 << 30, ChangedBytes: processed / 2, DeduplicatedBytes: processed / 4, UploadedBytes: processed / 8},
	}
}

func TestABackupSaysWhatItStores(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := &clock{now: time.Unix(1000, 0)}
	r, err := progress.New(progress.Plain, &out, false, c.Now)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 { // ten seconds, ten reports a second
		r.Show(backup(int64(i) * 8 << 20))
		c.now = c.now.Add(100 * time.Millisecond)
	}
	r.Show(backup(4 << 30))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	want := []string{
		"web: Storing 0% 0 B of 4 GiB; 0 B changed, 0 B deduplicated, 0 B uploaded, 0 B of 8 GiB scanned",
		"web: Storing 100% 4 GiB of 4 GiB, ",
		"",
	}
	if len(lines) != len(want) || lines[0] != want[0] || !strings.HasPrefix(lines[1], want[1]) ||
		!strings.HasSuffix(lines[1], "; 2 GiB changed, 1 GiB deduplicated, 512 MiB uploaded, 8 GiB of 8 GiB scanned") {
		t.Errorf("%q", lines)
	}
}

func TestJSONOfABackupHasEveryField(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r, err := progress.New(progress.JSON, &out, false, (&clock{now: time.Unix(1000, 0)}).Now)
	if err != nil {
		t.Fatal(err)
	}
	r.Show(backup(0))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	const want = `{"name":"web","phase":"Storing","percent":0,"processedBytes":0,"totalBytes":4294967296,` +
		`"scannedBytes":0,"diskBytes":8589934592,"changedBytes":0,"deduplicatedBytes":0,"uploadedBytes":0}` + "\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// What is too wide for the terminal is cut off, and takes no second line.
func TestTheBarFitsItsTerminal(t *testing.T) {
	t.Parallel()
	s := &screen{want: "uploaded", seen: make(chan struct{})}
	r, err := progress.New(progress.Bar, s, true, (&clock{now: time.Unix(1000, 0)}).Now)
	if err != nil {
		t.Fatal(err)
	}
	report := backup(1 << 30)
	report.Name = strings.Repeat("long\x1b[2Jname", 30)
	r.Show(report)
	select {
	case <-s.seen:
	case <-time.After(30 * time.Second):
		t.Errorf("drawn: %q", s.end())
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(s.text, "[2Jname\x1b") || strings.Contains(s.text, "\x1b[2J") {
		t.Errorf("the name's control characters are drawn: %q", s.text)
	}
	for line := range strings.SplitSeq(s.text, "\n") {
		line = strings.TrimPrefix(control.ReplaceAllString(line, ""), "\r")
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("%d characters: %q", n, line)
		}
	}
}

// control matches the sequences that move the cursor.
var control = regexp.MustCompile("\x1b\\[[0-9]*[A-Za-z]")

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
