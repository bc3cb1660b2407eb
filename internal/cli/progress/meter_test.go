package progress

import (
	"testing"
	"time"
)

// drive gives the meter a report after each step, every time with so many bytes more. It returns the time and the bytes
// of the last one.
func drive(m *meter, now time.Time, from int64, steps int, step time.Duration, bytes int64) (time.Time, int64) {
	for range steps {
		m.addReport(now, Report{Name: "n", Phase: "p", ProcessedBytes: from})
		now, from = now.Add(step), from+bytes
	}
	m.addReport(now, Report{Name: "n", Phase: "p", ProcessedBytes: from})
	return now, from
}

func near(t *testing.T, what string, got, want int64) {
	t.Helper()
	if got < want*95/100 || got > want*105/100 {
		t.Errorf("%s: %d bytes a second, want about %d", what, got, want)
	}
}

func TestTheRateIsThatOfNow(t *testing.T) {
	t.Parallel()
	m, start := &meter{}, time.Unix(1000, 0)
	// What was done before does not count.
	now, bytes := drive(m, start, 1<<40, 4, 250*time.Millisecond, 1000)
	if got := m.currentRate(now); got != 0 {
		t.Errorf("after a second: %d", got)
	}
	now, bytes = drive(m, now, bytes, 40, 250*time.Millisecond, 1000)
	near(t, "in the beginning", m.currentRate(now), 4000)
	now, bytes = drive(m, now, bytes, 4000, 250*time.Millisecond, 1000)
	near(t, "after a quarter of an hour", m.currentRate(now), 4000)
	// A tenth as fast: it shows after three windows, whatever the rate was before.
	now, bytes = drive(m, now, bytes, 80, time.Second, 400)
	near(t, "slower", m.currentRate(now), 400+3600*18/1000)
	now, _ = drive(m, now, bytes, 80, time.Second, 400)
	near(t, "slower for longer", m.currentRate(now), 400)
	// Nothing at all.
	if got := m.currentRate(now.Add(10 * time.Minute)); got != 0 {
		t.Errorf("while nothing moves: %d", got)
	}
}

func TestEachPhaseHasItsRate(t *testing.T) {
	t.Parallel()
	m := &meter{}
	now, bytes := drive(m, time.Unix(1000, 0), 0, 40, time.Second, 1000)
	for _, r := range []Report{
		{Name: "n", Phase: "q", ProcessedBytes: bytes},
		{Name: "o", Phase: "q", ProcessedBytes: bytes},
		{Name: "o", Phase: "q", ProcessedBytes: 0}, // started again
	} {
		m.addReport(now, r)
		if got := m.currentRate(now.Add(warmUp - 1)); got != 0 {
			t.Errorf("%+v: %d", r, got)
		}
	}
}

func TestReportsFasterThanTheClock(t *testing.T) {
	t.Parallel()
	m, now := &meter{}, time.Unix(1000, 0)
	for i := range int64(100000) { // five seconds
		m.addReport(now.Add(time.Duration(i)*50*time.Microsecond), Report{ProcessedBytes: i * 10})
	}
	near(t, "all together", m.currentRate(now.Add(5*time.Second)), 200000)
}

func TestTheRemainingTime(t *testing.T) {
	t.Parallel()
	m := &meter{}
	now, bytes := drive(m, time.Unix(1000, 0), 0, 10, time.Second, 1000)
	for _, c := range []struct{ total, want int64 }{{bytes + 5500, 6}, {bytes + 1, 1}, {bytes, 0}, {0, 0}} {
		r := m.withRate(now, Report{Name: "n", Phase: "p", ProcessedBytes: bytes, TotalBytes: c.total})
		if r.BytesPerSecond != 1000 || r.RemainingSeconds != c.want {
			t.Errorf("of %d: %+v, want %d seconds", c.total, r, c.want)
		}
	}
	if r := m.withRate(now.Add(time.Hour), Report{TotalBytes: 1 << 60, ProcessedBytes: 1}); r.RemainingSeconds != 0 {
		t.Errorf("while nothing moves: %+v", r)
	}
}
