package cron

import (
	"hash/fnv"
	"math"
	"time"
)

// Decision says what to do about the due times that have passed since the last one that was recorded.
type Decision struct {
	// Due is the newest due time that is not in the future, and zero if there is none. Record it whether or not it
	// runs: it is last of the next decision.
	Due time.Time
	// Run is true if Due is to be run now.
	Run bool
	// Missed is how many due times are never run: those before Due, and Due itself if it is too late for it.
	Missed int
}

// Decide returns which due time to run at the time now. last is the newest due time that was recorded, or when the
// schedule was created or resumed. However many due times have passed since, only the newest of them runs, so there
// is no burst after a time without a controller. It does not run if it passed longer ago than startingDeadline; zero
// means that it is never too late.
//
// While the clock is behind last nothing is due, so a clock that goes back runs nothing twice. A clock that was in
// the future for a moment may have made the schedule record a due time there, so tell the user if last is far after
// now: the schedule rests until then.
func (s *Schedule) Decide(last, now time.Time, startingDeadline time.Duration) Decision {
	due, ok := s.Latest(last, now)
	if !ok {
		return Decision{}
	}
	d := Decision{Due: due, Run: startingDeadline <= 0 || now.Sub(due) <= startingDeadline}
	d.Missed = s.Count(last, due, math.MaxInt)
	if d.Run {
		d.Missed--
	}
	return d
}

// Spread returns how long after its due times the schedule with this UID begins, so that a thousand schedules of
// midnight do not begin at once: ask Decide about the time that is so much before now. It is in whole seconds, at
// least 0, and less than jitter and than the granularity of the schedule. The same arguments always have the same
// result.
func (s *Schedule) Spread(uid string, jitter time.Duration) time.Duration {
	seconds := uint64(max(0, min(jitter, s.Granularity())/time.Second))
	if seconds == 0 {
		return 0
	}
	hash := fnv.New64a()
	hash.Write([]byte(uid)) // it never fails
	return time.Duration(hash.Sum64()%seconds) * time.Second
}
