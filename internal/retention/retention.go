// Package retention decides which restore points of one disk, or of one virtual machine, are kept. It is pure: the caller lists
// the points of each disk or machine, decides for each alone, and removes what Decide does not keep. A dry run prints the same
// decisions.
//
// The rules add up: a point that any of them keeps stays, and each rule that keeps it is a reason.
//
//   - The last N; and of the newest N hours, days, weeks, months and years that have a point, the newest point. Periods are those of
//     the calendar in the policy's location; weeks are ISO 8601's, from Monday. A period without a point does not count, so points do
//     not age away after backups have stopped. Unlike restic, the oldest point is not kept for periods that have yet to come.
//   - Within a span: counted back from the newest good point, not from now, for the same reason. The end of the span belongs to it.
//   - A pin. It keeps its point and changes nothing for the others: a pinned point takes the slots that it would take unpinned.
//
// Whatever the rules say:
//
//   - The newest good point stays.
//   - A point that is not good counts for no rule, so it never displaces a good one, and no rule keeps it. But it stays, with a
//     reason, until Policy.RemoveDamaged asks for its removal. Points share their content, so one bad block in the repository can make
//     all of them not good at once; a later backup may bring the block back; and even a damaged point may be the only one that has
//     the other disks of its day. Points newer than the last good one stay even then, and so does everything if none is good.
//   - A point in the future was made by a clock that was wrong. It stays, and counts for no rule: it would be the newest for years.
//
// Deciding again on what was kept keeps all of it. The order in which points are given does not matter.
package retention

import (
	"errors"
	"fmt"
	"time"
)

// ErrEmpty is the error of a policy without any rule. Nothing is removed then, because that is more likely to be a mistake than
// the wish to keep only the last good point. For the latter, set Last to 1.
var ErrEmpty = errors.New("the policy has no rule, so nothing is removed: " +
	"set at least one of keep-last, keep-hourly, keep-daily, keep-weekly, keep-monthly, keep-yearly and keep-within")

// Policy says what to keep. A number is how many points the rule keeps at most; zero means that there is no such rule.
type Policy struct {
	Last    int
	Hourly  int
	Daily   int
	Weekly  int
	Monthly int
	Yearly  int
	// Within keeps every point that is no older than this, seen from the newest good one. The zero Span means that there is no
	// such rule.
	Within Span

	// RemoveDamaged allows the removal of points that are not good and older than the last good one, unless they are pinned.
	RemoveDamaged bool

	// Location defines where days begin; nil is UTC.
	Location *time.Location
}

// Point is a restore point of the disk or machine to decide on.
type Point struct {
	// ID names the point, and is not empty. Of two points with the same time, the one with the greater ID counts as newer.
	ID string
	// Time is the point in time that the point restores, not when it was written.
	Time time.Time
	// Pinned says that somebody wants the point kept until they say otherwise.
	Pinned bool
	// Good says that the point is complete and not known to be damaged.
	Good bool
	// MadeLast says that no point was made later, whatever the times say: a clock may have been behind.
	MadeLast bool
}

// Decision is the outcome for a point.
type Decision struct {
	Point Point
	// Keep says whether the point stays.
	Keep bool
	// Reasons are the rules that keep the point, in a fixed order, such as "pinned", "last good one", "last 3", "daily
	// 2026-11-20" and "within 30d". Every kept point has at least one, and a removed one has none.
	Reasons []string
}

// Validate returns ErrEmpty for a policy without rules, or an error that names the rule whose number is invalid.
func (p Policy) Validate() error {
	if err := p.Within.validate(); err != nil {
		return fmt.Errorf("keep-within: %w", err)
	}
	empty := p.Within.Zero()
	for _, r := range p.activeRules() {
		if r.most < 0 {
			return fmt.Errorf("keep-%s is %d: it cannot be negative", r.name, r.most)
		}
		empty = empty && r.most == 0
	}
	if empty {
		return ErrEmpty
	}
	return nil
}

// rule keeps the newest point of each of the newest periods that have one.
type rule struct {
	name string
	most int // periods
	// period names the period that a time is in. If it is nil, every point is a period of its own.
	period func(time.Time) string
}

func (p Policy) timeZone() *time.Location {
	if p.Location == nil {
		return time.UTC
	}
	return p.Location
}

func (p Policy) activeRules() []rule {
	location := p.timeZone()
	format := func(layout string) func(time.Time) string {
		return func(t time.Time) string { return t.In(location).Format(layout) }
	}
	week := func(t time.Time) string {
		year, n := t.In(location).ISOWeek()
		return fmt.Sprintf("%04d-W%02d", year, n)
	}
	return []rule{
		{name: "last", most: p.Last},
		// The offset distinguishes the two hours of the same name at the end of summer time.
		{name: "hourly", most: p.Hourly, period: format("2006-01-02T15:00Z07:00")},
		{name: "daily", most: p.Daily, period: format(time.DateOnly)},
		{name: "weekly", most: p.Weekly, period: week},
		{name: "monthly", most: p.Monthly, period: format("2006-01")},
		{name: "yearly", most: p.Yearly, period: format("2006")},
	}
}
