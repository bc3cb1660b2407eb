package cron

import (
	"fmt"
	"math"
	"regexp"
	"time"
	_ "time/tzdata" // Varve's images have no database of time zones: whatever reads schedules has this one
)

// zoneName is what the names of time zones look like. A name is part of a path when the machine has a database.
var zoneName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)

// loadZone returns the time zone of an IANA name.
func loadZone(name string) (*time.Location, error) {
	const instead = "write an IANA name such as Europe/Berlin, or UTC"
	switch name {
	case "":
		return time.UTC, nil
	case "Local", "localtime", "posixrules":
		return nil, fmt.Errorf("time zone %q depends on the machine on which the controller runs: %s", name, instead)
	}
	if len(name) > 64 || !zoneName.MatchString(name) {
		return nil, fmt.Errorf("%q is not the name of a time zone: %s", name[:min(len(name), 64)], instead)
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("time zone %q is unknown: %s", name, instead)
	}
	return location, nil
}

// period is a stretch of time in which a zone's clocks do not change. Times are Unix seconds, offsets are seconds
// east of UTC.
type period struct {
	start, end       int64 // end is excluded
	offset, previous int64 // previous is the offset before start
}

// The ends of periods that have none. They leave room for offsets.
const (
	noStart = math.MinInt64 / 4
	noEnd   = math.MaxInt64 / 4
)

// periodAt returns a period that includes t. It may be shorter than the clocks stay the same: previous is offset
// then.
func (s *Schedule) periodAt(t int64) period {
	at := time.Unix(t, 0).In(s.location)
	p := period{start: noStart, end: noEnd, offset: offsetAt(at)}
	start, end := at.ZoneBounds()
	if !end.IsZero() {
		p.end = end.Unix()
	}
	if p.end <= t {
		// Package time ends leap years a day too early.
		p.end = (floorDiv(t, secondsPerDay) + 1) * secondsPerDay
	}
	p.previous = p.offset
	if !start.IsZero() {
		p.start = start.Unix()
		p.previous = offsetAt(start.Add(-time.Second))
	}
	return p
}

func offsetAt(t time.Time) int64 {
	_, seconds := t.Zone()
	return int64(seconds)
}
