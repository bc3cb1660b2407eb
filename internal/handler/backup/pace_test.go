package backup

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

// A night of a thousand backups must not be a thousand status writes a second.
func TestProgress_isWrittenEveryFiveSecondsAtMost(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	r := &Reconciler{Clock: clock, written: map[types.UID]time.Time{}}
	if wait := r.holdBack("b"); wait > 0 {
		t.Errorf("the first report waits %s", wait)
	}
	r.written["b"] = clock.Now()
	clock.SetTime(clock.Now().Add(4 * time.Second))
	if wait := r.holdBack("b"); wait != time.Second {
		t.Errorf("after 4 s the next report waits %s", wait)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	if wait := r.holdBack("b"); wait > 0 {
		t.Errorf("after 5 s the next report waits %s", wait)
	}
}
