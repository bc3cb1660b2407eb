package cron

import (
	"math/bits"
	"slices"
	"time"
)

const (
	minutesPerDay = 24 * 60
	secondsPerDay = minutesPerDay * 60
)

// This file is about the wall clock alone, on which every day has 24 hours. It counts in minutes and days since
// 1970-01-01.

// month is a month of the calendar.
type month struct {
	year  int
	month time.Month
}

// monthOf returns the month of a day, and the day of the month.
func monthOf(day int64) (m month, dayOfMonth int) {
	year, name, dayOfMonth := time.Unix(day*secondsPerDay, 0).UTC().Date()
	return month{year, name}, dayOfMonth
}

// start returns the first day of the month.
func (m month) start() int64 {
	return floorDiv(time.Date(m.year, m.month, 1, 0, 0, 0, 0, time.UTC).Unix(), secondsPerDay)
}

func (m month) next() month {
	if m.month == time.December {
		return month{m.year + 1, time.January}
	}
	return month{m.year, m.month + 1}
}

func (m month) previous() month {
	if m.month == time.January {
		return month{m.year - 1, time.December}
	}
	return month{m.year, m.month - 1}
}

func (m month) length() int {
	switch m.month {
	case time.February:
		if m.year%4 == 0 && (m.year%100 != 0 || m.year%400 == 0) {
			return 29
		}
		return 28
	case time.April, time.June, time.September, time.November:
		return 30
	default:
		return 31
	}
}

// weekdayOf returns 0 for a Sunday. 1970-01-01 was a Thursday.
func weekdayOf(day int64) int { return int((day%7 + 7 + 4) % 7) }

// daysOf returns the days of a month on which the schedule is due: bit n is day n. first is the weekday of day 1.
func (s *Schedule) daysOf(m month, first int) uint64 {
	if s.months>>int(m.month)&1 == 0 {
		return 0
	}
	all := uint64(1)<<(m.length()+1) - 2
	if s.eitherDay {
		return (s.monthDays | s.onWeekdays(first)) & all
	}
	return s.monthDays & s.onWeekdays(first) & all
}

// onWeekdays returns the days that fall on the schedule's weekdays in a month that begins with the weekday first.
func (s *Schedule) onWeekdays(first int) uint64 {
	week := s.weekdays<<7 | s.weekdays // two weeks from a Sunday on
	week = week >> first & (1<<7 - 1)  // one week from day 1 on
	return (week | week<<7 | week<<14 | week<<21 | week<<28) << 1
}

// nextOnWall returns the first matching minute in [from, limit).
func (s *Schedule) nextOnWall(from, limit int64) (int64, bool) {
	today, now := floorDiv(from, minutesPerDay), int(minuteOfDay(from))
	m, dayOfMonth := monthOf(today)
	skip := dayOfMonth // days before it have passed
	for {
		start := m.start()
		if start*minutesPerDay >= limit {
			return 0, false
		}
		days := s.daysOf(m, weekdayOf(start)) >> skip << skip
		for ; days != 0; days &= days - 1 {
			day := start + int64(bits.TrailingZeros64(days)) - 1
			i := 0
			if day == today {
				i, _ = slices.BinarySearch(s.times, now)
			}
			if i < len(s.times) {
				minute := day*minutesPerDay + int64(s.times[i])
				return minute, minute < limit
			}
		}
		m, skip = m.next(), 0
	}
}

// lastOnWall returns the last matching minute in [limit, until].
func (s *Schedule) lastOnWall(limit, until int64) (int64, bool) {
	today, now := floorDiv(until, minutesPerDay), int(minuteOfDay(until))
	m, dayOfMonth := monthOf(today)
	keep := uint64(1)<<(dayOfMonth+1) - 1 // days after it are yet to come
	for {
		start := m.start()
		days := s.daysOf(m, weekdayOf(start)) & keep
		for days != 0 {
			n := bits.Len64(days) - 1
			days &^= 1 << n
			day := start + int64(n) - 1
			i := len(s.times)
			if day == today {
				i, _ = slices.BinarySearch(s.times, now+1)
			}
			if i > 0 {
				minute := day*minutesPerDay + int64(s.times[i-1])
				return minute, minute >= limit
			}
		}
		if start*minutesPerDay <= limit {
			return 0, false
		}
		m, keep = m.previous(), ^uint64(0)
	}
}

// countOnWall returns how many minutes in [from, limit) match.
func (s *Schedule) countOnWall(from, limit int64) int {
	if from >= limit {
		return 0
	}
	firstDay, lastDay := floorDiv(from, minutesPerDay), floorDiv(limit, minutesPerDay)
	before := s.countOnDay(firstDay, int(minuteOfDay(from)))
	within := s.countOnDay(lastDay, int(minuteOfDay(limit)))
	return s.countDays(firstDay, lastDay)*len(s.times) - before + within
}

// countOnDay returns how many minutes of a day match before a minute of it.
func (s *Schedule) countOnDay(day int64, minute int) int {
	n, _ := slices.BinarySearch(s.times, minute)
	return n * s.countDays(day, day+1)
}

// countDays returns how many days in [from, limit) match.
func (s *Schedule) countDays(from, limit int64) int {
	count := 0
	m, dayOfMonth := monthOf(from)
	for start := m.start(); start < limit; start = m.start() {
		days := s.daysOf(m, weekdayOf(start)) >> dayOfMonth << dayOfMonth
		if rest := limit - start; rest < 32 {
			days &= 1<<(rest+1) - 1
		}
		count += bits.OnesCount64(days)
		m, dayOfMonth = m.next(), 0
	}
	return count
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func minuteOfDay(minute int64) int64 { return minute - floorDiv(minute, minutesPerDay)*minutesPerDay }

func ceilDiv(a, b int64) int64 { return -floorDiv(-a, b) }
