package progress

import (
	"math"
	"sync"
	"time"
)

const (
	// window is the time over which the rate is averaged: what is long past counts for less and less.
	window = 20 * time.Second
	// warmUp is how long to measure before there is a rate.
	warmUp = 2 * time.Second
	// grain is the shortest time to measure over. The clock is too coarse for shorter ones.
	grain = 100 * time.Millisecond
)

// meter measures how fast the bytes of one phase are processed, as an exponentially weighted mean. It is safe for
// concurrent use.
type meter struct {
	mu    sync.Mutex
	phase string
	// begin is when the phase was first seen, at is when bytes was measured.
	begin, at    time.Time
	bytes, total int64
	// sum is the mean before correction: it is too small by the weight of the time before begin.
	sum float64
}

// addReport takes the numbers of a report. What was done before the first report of a phase does not count: it took
// another time. Neither does what was done when the total became known: that may be zeroes, which took none.
func (m *meter) addReport(now time.Time, r Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	phase := r.Name + "\x00" + r.Phase
	if m.begin.IsZero() || phase != m.phase || r.ProcessedBytes < m.bytes || m.total == 0 && r.TotalBytes > 0 {
		m.phase, m.begin, m.at, m.bytes, m.total, m.sum = phase, now, now, r.ProcessedBytes, r.TotalBytes, 0
		return
	}
	passed := now.Sub(m.at)
	if passed < grain {
		return
	}
	m.sum = m.sumAfter(passed, r.ProcessedBytes-m.bytes)
	m.at, m.bytes = now, r.ProcessedBytes
}

// sumAfter returns sum with so many bytes more, processed in the time since at.
func (m *meter) sumAfter(passed time.Duration, bytes int64) float64 {
	old := math.Exp(-passed.Seconds() / window.Seconds())
	return m.sum*old + float64(bytes)/passed.Seconds()*(1-old)
}

// currentRate returns bytes per second as of now, or 0 if it is not known or nothing has moved for long.
func (m *meter) currentRate(now time.Time) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begin.IsZero() || now.Sub(m.begin) < warmUp {
		return 0
	}
	sum := m.sum
	if silent := now.Sub(m.at); silent > warmUp {
		sum = m.sumAfter(silent, 0)
	} else {
		now = m.at
	}
	weight := 1 - math.Exp(-now.Sub(m.begin).Seconds()/window.Seconds())
	if weight <= 0 {
		return 0
	}
	return int64(math.Round(sum / weight))
}

// withRate returns r with its rate and remaining time.
func (m *meter) withRate(now time.Time, r Report) Report {
	r.BytesPerSecond = m.currentRate(now)
	if left := r.TotalBytes - r.ProcessedBytes; r.BytesPerSecond > 0 && left > 0 {
		r.RemainingSeconds = (left + r.BytesPerSecond - 1) / r.BytesPerSecond
	}
	return r
}

// Meters measure several things at once, each under a key of its own. The zero value is ready to use. It is not safe for concurrent use.
type Meters[K comparable] struct{ each map[K]*meter }

// Measure takes a report of one thing, and returns it with the rate and the remaining time between its reports: with none for the first
// report of a phase.
func (m *Meters[K]) Measure(now time.Time, key K, r Report) Report {
	if m.each == nil {
		m.each = map[K]*meter{}
	}
	if m.each[key] == nil {
		m.each[key] = &meter{}
	}
	m.each[key].addReport(now, r)
	return m.each[key].withRate(now, r)
}

// Forget forgets a thing that has ended.
func (m *Meters[K]) Forget(key K) { delete(m.each, key) }
