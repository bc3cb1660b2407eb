package endpoint_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/test/exportsite"
)

// pauseRecorder is a clock whose timers end at once.
type pauseRecorder struct {
	clock.RealClock
	pauses []time.Duration
}

func (r *pauseRecorder) NewTimer(d time.Duration) clock.Timer {
	r.pauses = append(r.pauses, d)
	return r.RealClock.NewTimer(0)
}

// recordPauses returns the pauses of a request that nobody answers. Each is nominally an hour.
func recordPauses(t *testing.T, random rand.Source) []time.Duration {
	t.Helper()
	const pauses = 20
	recorder := &pauseRecorder{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := exportsite.Open(t).Options()
	o.Dial = func(context.Context, string, string) (net.Conn, error) {
		if len(recorder.pauses) == pauses {
			cancel()
		}
		return nil, errors.New("nobody answers")
	}
	o.FirstPause, o.LongestPause, o.Clock, o.Random = time.Hour, time.Hour, recorder, random
	if _, err := exportsite.NewClient(t, o).Stream(ctx, endpoint.StreamRequest{URL: "https://localhost/exports/disk/stream"}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return recorder.pauses
}

// pauseClock goes on by what is paused for, and by nothing else.
type pauseClock struct {
	clock.RealClock
	now time.Time
}

func (c *pauseClock) Now() time.Time { return c.now }

func (c *pauseClock) NewTimer(d time.Duration) clock.Timer {
	c.now = c.now.Add(d)
	return c.RealClock.NewTimer(0)
}

// countHours has a client pause for an hour, and give up after ten, however long its attempts take. The client may be used by one goroutine.
func countHours(o *endpoint.Options) {
	o.FirstPause, o.LongestPause, o.Patience, o.Clock = time.Hour, time.Hour, 10*time.Hour, &pauseClock{now: time.Unix(0, 0)}
}

func TestRetry_seedRepeatsPauses(t *testing.T) {
	t.Parallel()
	first := recordPauses(t, rand.NewPCG(1, 2))
	if again := recordPauses(t, rand.NewPCG(1, 2)); !slices.Equal(first, again) {
		t.Errorf("%v, then %v", first, again)
	}
	for _, pause := range first {
		if pause < time.Hour/2 || pause > time.Hour {
			t.Errorf("a pause of %s instead of an hour", pause)
		}
	}
}

func TestRetry_clientsPauseDifferently(t *testing.T) {
	t.Parallel()
	if one, other := recordPauses(t, nil), recordPauses(t, nil); slices.Equal(one, other) {
		t.Errorf("both pause for %v", one)
	}
}
