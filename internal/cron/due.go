package cron

import "time"

// Due times are looked for in the years 1 to 9999, and at most this far away: 29 February is eight years away around
// 2100.
const (
	earliest   = -62135596800
	latest     = 253402300799
	searchSpan = 9 * 366 * secondsPerDay
)

// Next returns the first due time after a time, in the schedule's zone. It is zero after the year 9999.
func (s *Schedule) Next(after time.Time) time.Time {
	from := max(after.Unix()+1, earliest)
	limit := min(from+searchSpan, latest+1)
	for t := from; t < limit; {
		p := s.periodAt(t)
		if due, ok := s.firstIn(p, t, limit); ok {
			return s.time(due)
		}
		t = p.end
	}
	return time.Time{}
}

// Latest returns the newest due time that is after since and not after until, in the schedule's zone, and whether
// there is one.
func (s *Schedule) Latest(since, until time.Time) (time.Time, bool) {
	from, t := secondSpan(since, until)
	for t >= from {
		p := s.periodAt(t)
		if due, ok := s.lastIn(p, from, t); ok {
			return s.time(due), true
		}
		t = p.start - 1
	}
	return time.Time{}, false
}

// Count returns how many due times are after since and not after until, but at most limit.
func (s *Schedule) Count(since, until time.Time, limit int) int {
	count := 0
	from, to := secondSpan(since, until)
	for t := from; t <= to && count < limit; {
		p := s.periodAt(t)
		count += s.countIn(p, t, to)
		t = p.end
	}
	return max(min(count, limit), 0)
}

// secondSpan returns the first and the last second that are after since and not after until. Due times are whole
// seconds.
func secondSpan(since, until time.Time) (from, to int64) {
	return max(since.Unix()+1, earliest), min(until.Unix(), latest)
}

func (s *Schedule) time(unix int64) time.Time { return time.Unix(unix, 0).In(s.location) }

// firstIn returns the first due time of a period in [from, limit).
func (s *Schedule) firstIn(p period, from, limit int64) (int64, bool) {
	if from <= p.start && p.start < limit && s.isDueAtJump(p) {
		return p.start, true
	}
	minute, ok := s.nextOnWall(s.wallFrom(p, from), p.wall(min(p.end, limit)))
	return p.unix(minute), ok
}

// lastIn returns the last due time of a period in [from, to].
func (s *Schedule) lastIn(p period, from, to int64) (int64, bool) {
	limit, until := s.wallFrom(p, from), p.wall(min(p.end, to+1))-1
	if limit <= until {
		if minute, ok := s.lastOnWall(limit, until); ok {
			return p.unix(minute), true
		}
	}
	return p.start, from <= p.start && p.start <= to && s.isDueAtJump(p)
}

// countIn returns how many due times a period has in [from, to].
func (s *Schedule) countIn(p period, from, to int64) int {
	begin, limit := s.wallFrom(p, from), p.wall(min(p.end, to+1))
	count := s.countOnWall(begin, limit)
	if from <= p.start && p.start <= to && s.isDueAtJump(p) {
		if minute, ok := s.nextOnWall(begin, limit); !ok || p.unix(minute) != p.start {
			count++
		}
	}
	return count
}

// isDueAtJump says whether the schedule is due at the beginning of a period for times that the clocks skip there.
func (s *Schedule) isDueAtJump(p period) bool {
	if p.previous >= p.offset || s.everyHour {
		return false
	}
	_, ok := s.nextOnWall(ceilDiv(p.start+p.previous, 60), p.wall(p.start))
	return ok
}

// wallFrom returns the first minute of the wall clock that counts in a period from the time t on. At the beginning of
// a period whose clocks went back, the minutes come a second time.
func (s *Schedule) wallFrom(p period, t int64) int64 {
	minute := p.wall(max(t, p.start))
	if p.previous > p.offset && !s.repeats {
		minute = max(minute, ceilDiv(p.start+p.previous, 60))
	}
	return minute
}

// wall returns the first whole minute of the wall clock at t or later.
func (p period) wall(t int64) int64 { return ceilDiv(t+p.offset, 60) }

// unix returns the time of a minute of the wall clock.
func (p period) unix(minute int64) int64 { return minute*60 - p.offset }
