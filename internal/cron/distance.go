package cron

import (
	"math"
	"math/bits"
	"time"
)

// The days of years repeat after 28 years, which have every kind of year, and every kind of year after every other
// one that it can follow. So what is the smallest distance in them, is it in the 400 years of the calendar's whole
// period.
const (
	calendarYears = 28
	calendarDays  = calendarYears*365 + calendarYears/4
	calendarStart = 2001 // 1 January 2001 is a Monday
)

// calendar has the days of 28 years on which a schedule is due. After the last day comes the first one.
type calendar [(calendarDays + 63) / 64]uint64

func (s *Schedule) newCalendar() calendar {
	var c calendar
	day, weekday := 0, int(time.Monday)
	for m := (month{calendarStart, time.January}); m.year < calendarStart+calendarYears; m = m.next() {
		days := s.daysOf(m, weekday) >> 1 // bit 0 is day 1
		c[day/64] |= days << (day % 64)
		if day%64 > 32 && day/64+1 < len(c) {
			c[day/64+1] |= days >> (64 - day%64)
		}
		day += m.length()
		weekday = (weekday + m.length()) % 7
	}
	return c
}

func (c *calendar) isEmpty() bool { return *c == calendar{} }

// delayBy returns the calendar with every day moved by a few days.
func (c *calendar) delayBy(days int) *calendar {
	if days == 0 {
		return c
	}
	var moved calendar
	for i, word := range c {
		for ; word != 0; word &= word - 1 {
			day := (i*64 + bits.TrailingZeros64(word) + days) % calendarDays
			moved[day/64] |= 1 << (day % 64)
		}
	}
	return &moved
}

// apart are the smallest distances of the days of two calendars, in days. They are math.MaxInt if there are none.
type apart struct {
	sameDay bool
	// forward leads from a day of the first calendar to a later one of the second one, backward from one of the second.
	forward, backward int
}

func compareDays(a, b *calendar) apart {
	found := apart{forward: math.MaxInt, backward: math.MaxInt}
	lastA, lastB := math.MinInt32, math.MinInt32
	for round := range 2 { // the beginning of the second round has the distances from the end to the beginning
		for i := range a {
			if min(lastA, lastB) >= calendarDays {
				return found
			}
			for word := a[i] | b[i]; word != 0; word &= word - 1 {
				bit := bits.TrailingZeros64(word)
				day := round*calendarDays + i*64 + bit
				inA, inB := a[i]>>bit&1 == 1, b[i]>>bit&1 == 1
				if inB && lastA >= 0 {
					found.forward = min(found.forward, day-lastA)
				}
				if inA && lastB >= 0 {
					found.backward = min(found.backward, day-lastB)
				}
				if inA {
					lastA = day
				}
				if inB {
					lastB = day
				}
				found.sameDay = found.sameDay || inA && inB
				if found == (apart{true, 1, 1}) {
					return found
				}
			}
		}
	}
	return found
}

// Granularity returns the smallest distance of two due times by the wall clock, whenever that is. It does not count
// the days on which clocks change.
func (s *Schedule) Granularity() time.Duration {
	days := compareDays(&s.days, &s.days).forward
	smallest := days*minutesPerDay + s.times[0] - s.times[len(s.times)-1]
	for i := 1; i < len(s.times); i++ {
		smallest = min(smallest, s.times[i]-s.times[i-1])
	}
	return time.Duration(smallest) * time.Minute
}

// Offset returns the smallest distance of a due time of a and one of b, whenever that is. It does not count the days
// on which clocks change. For schedules in different time zones it is the smallest over all differences that the two
// zones have within a year, whether or not the schedules are due then.
func Offset(a, b *Schedule) time.Duration {
	smallest := math.MaxInt
	for _, ahead := range zoneDifferences(a, b) {
		for _, g := range a.seenFrom(ahead) {
			first, second := &a.days, &b.days
			if g.days >= 0 {
				first = first.delayBy(g.days)
			} else {
				second = second.delayBy(-g.days)
			}
			smallest = min(smallest, distanceBetween(first, g.times, second, b.times))
		}
	}
	return time.Duration(smallest) * time.Minute
}

// distanceBetween returns the smallest distance of two sets of due times in minutes.
func distanceBetween(a *calendar, timesA []int, b *calendar, timesB []int) int {
	days := compareDays(a, b)
	smallest := math.MaxInt
	if days.sameDay {
		smallest = closestTimes(timesA, timesB)
	}
	if days.forward < math.MaxInt {
		smallest = min(smallest, days.forward*minutesPerDay+timesB[0]-timesA[len(timesA)-1])
	}
	if days.backward < math.MaxInt {
		smallest = min(smallest, days.backward*minutesPerDay+timesA[0]-timesB[len(timesB)-1])
	}
	return smallest
}

// closestTimes returns the smallest difference of a number of a and one of b. Both are ascending.
func closestTimes(a, b []int) int {
	smallest := math.MaxInt
	for i, j := 0, 0; i < len(a) && j < len(b) && smallest > 0; {
		smallest = min(smallest, max(a[i]-b[j], b[j]-a[i]))
		if a[i] < b[j] {
			i++
		} else {
			j++
		}
	}
	return smallest
}

// moved are the times of a schedule that another zone has on the same day, or on a day before or after it.
type moved struct {
	days  int
	times []int
}

// seenFrom returns the schedule's times in a zone whose clocks are behind those of the schedule by some minutes.
func (s *Schedule) seenFrom(ahead int) []moved {
	if ahead == 0 {
		return []moved{{times: s.times}}
	}
	var all []moved
	for _, t := range s.times {
		days := int(floorDiv(int64(t-ahead), minutesPerDay))
		if len(all) == 0 || all[len(all)-1].days != days {
			all = append(all, moved{days: days})
		}
		last := &all[len(all)-1]
		last.times = append(last.times, t-ahead-days*minutesPerDay)
	}
	return all
}

// The year in which the clocks of two zones are compared. It is far enough away that the rules which hold now hold in
// it, as far as the database of time zones knows, and it does not depend on the present.
var (
	comparedFrom  = time.Date(2037, time.January, 1, 0, 0, 0, 0, time.UTC).Unix()
	comparedUntil = time.Date(2038, time.January, 1, 0, 0, 0, 0, time.UTC).Unix()
)

// zoneDifferences returns by how many minutes the clocks of a's zone are ahead of those of b's zone in the course of a
// year.
func zoneDifferences(a, b *Schedule) []int {
	if a.location.String() == b.location.String() {
		return []int{0}
	}
	var all []int
	seen := map[int]bool{}
	for t := comparedFrom; t < comparedUntil; {
		ofA, ofB := a.periodAt(t), b.periodAt(t)
		ahead := int(ofA.offset-ofB.offset) / 60
		if !seen[ahead] {
			seen[ahead] = true
			all = append(all, ahead)
		}
		t = min(ofA.end, ofB.end)
	}
	return all
}
