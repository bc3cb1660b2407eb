// Package cron is the clock of schedules: it says when a schedule is due. It is pure: the caller gives every time,
// and the same question always has the same answer.
//
// A schedule is a cron expression of five fields in a time zone. The fields mean what they mean in a Kubernetes
// CronJob: if both the day of the month and the day of the week are restricted, a day has to match only one of them.
//
// When the clocks of the zone change:
//
//   - A time of day that the clocks skip is not lost. The schedule is due once at the moment to which they jump,
//     however many of its times are skipped, and also if a whole day is. `30 2 * * *` in Europe/Berlin is due at
//     03:00 on the last Sunday of March. A schedule that runs in all 24 hours of the day is not due at that moment
//     for the times that are skipped: its next time is less than two hours away.
//   - A time of day that comes twice counts once, the first time. But if the hour is `*` or `*/n`, or if all 24 hours
//     are listed, the schedule is due both times, because it runs at intervals: `0 * * * *` never pauses for two
//     hours.
//
// Granularity and Offset are about the calendar and the wall clock. They depend neither on the present nor on the
// days on which clocks change.
package cron

import "time"

// Schedule is when something is due. Its methods may be called concurrently.
type Schedule struct {
	expression string
	location   *time.Location
	// times are the minutes of the day, ascending.
	times []int
	// Bit n of months, monthDays and weekdays stands for the number n. Sunday is 0.
	months, monthDays, weekdays uint64
	// eitherDay is true if a day needs to match only one of monthDays and weekdays.
	eitherDay bool
	// everyHour is true if the schedule runs in all hours of the day, so that a skipped time need not be made up for.
	everyHour bool
	// repeats is true if the schedule is due both times when a time of day comes twice.
	repeats bool
	days    calendar
}

// String returns the schedule as Parse takes it, with its time zone.
func (s *Schedule) String() string { return "CRON_TZ=" + s.location.String() + " " + s.expression }

// Expression returns the expression without its time zone.
func (s *Schedule) Expression() string { return s.expression }

// Location returns the time zone in which the schedule is read.
func (s *Schedule) Location() *time.Location { return s.location }
