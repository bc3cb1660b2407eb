package retention

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxSpan is the greatest number that a part of a Span may have. It is far beyond every use, and no sum of five such parts
// overflows anything.
const maxSpan = 1_000_000

// Span is a length of calendar time: months have their own lengths, and days may have 23 or 25 hours.
type Span struct {
	Years, Months, Weeks, Days, Hours int
}

// ParseSpan reads a span such as 36h, 7d, 4w, 6m, 2y or 1y6m: numbers with the units y, m (months), w, d and h, each at most
// once. A number is at most a million. Not all may be zero, because that would keep nothing.
func ParseSpan(s string) (Span, error) {
	var span Span
	fail := func(why string) (Span, error) {
		return Span{}, fmt.Errorf("%q is not a span of time: %s; write for example 36h, 7d, 4w, 6m (months), 2y or 1y6m", s, why)
	}
	seen := make(map[byte]bool)
	rest := s
	for rest != "" {
		digits := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if digits < 0 {
			return fail("a number has no unit")
		}
		unit := rest[digits]
		part := span.fieldOf(unit)
		switch {
		case part == nil:
			return fail("the units are y, m, w, d and h")
		case digits == 0:
			return fail("a unit has no number")
		case seen[unit]:
			return fail(fmt.Sprintf("the unit %c is given twice", unit))
		}
		seen[unit] = true
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || n > maxSpan {
			return fail(fmt.Sprintf("a number is greater than %d", maxSpan))
		}
		*part = n
		rest = rest[digits+1:]
	}
	if span.Zero() {
		return fail("it is empty")
	}
	return span, nil
}

// fieldOf returns the field that a unit sets, or nil.
func (s *Span) fieldOf(unit byte) *int {
	switch unit {
	case 'y':
		return &s.Years
	case 'm':
		return &s.Months
	case 'w':
		return &s.Weeks
	case 'd':
		return &s.Days
	case 'h':
		return &s.Hours
	default:
		return nil
	}
}

// Zero says whether the span has no length.
func (s Span) Zero() bool { return s == Span{} }

// String returns what ParseSpan reads, the greatest unit first.
func (s Span) String() string {
	var b strings.Builder
	for _, unit := range []byte("ymwdh") {
		if n := *s.fieldOf(unit); n != 0 {
			fmt.Fprintf(&b, "%d%c", n, unit)
		}
	}
	return b.String()
}

func (s Span) validate() error {
	for _, unit := range []byte("ymwdh") {
		n := *s.fieldOf(unit)
		if n < 0 {
			return errors.New(s.String() + " is negative")
		}
		if n > maxSpan {
			return fmt.Errorf("%s is longer than anybody keeps anything: a number is at most %d", s, maxSpan)
		}
	}
	return nil
}

// Before returns the time that lies s before t, by the calendar of t's location. A month before the 31st of March is the last of
// February, not a day in March. If that time of day does not exist on that day, or exists twice, because the clocks were changed,
// the result may be an hour off.
func (s Span) Before(t time.Time) time.Time {
	if s.Years != 0 || s.Months != 0 || s.Weeks != 0 || s.Days != 0 {
		year, month, day := t.Date()
		first := time.Date(year, month-time.Month(s.Months+12*s.Years), 1, 0, 0, 0, 0, time.UTC)
		if last := first.AddDate(0, 1, -1).Day(); day > last {
			day = last
		}
		t = time.Date(first.Year(), first.Month(), day-s.Days-7*s.Weeks, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), t.Location())
	}
	return t.Add(-time.Duration(s.Hours) * time.Hour)
}
