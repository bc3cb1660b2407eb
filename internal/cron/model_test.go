package cron

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The model answers every question by going through the minutes one by one.

// modelField is one field of an expression: what it says, and the numbers that it means.
type modelField struct {
	text   string
	values map[int]bool
}

func (f modelField) star() bool { return f.text == "*" }

// modelSchedule is an expression.
type modelSchedule struct{ minute, hour, monthDay, month, weekday modelField }

func (m modelSchedule) String() string {
	return strings.Join([]string{m.minute.text, m.hour.text, m.monthDay.text, m.month.text, m.weekday.text}, " ")
}

func someField(t *rapid.T, name string, low, high int) modelField {
	f := modelField{values: map[int]bool{}}
	add := func(from, to, step int) {
		for n := from; n <= to; n += step {
			f.values[n] = true
		}
	}
	number := rapid.IntRange(low, high)
	switch rapid.IntRange(0, 6).Draw(t, name+" kind") {
	case 0, 1:
		f.text = "*"
		add(low, high, 1)
	case 2:
		step := rapid.IntRange(2, high).Draw(t, name+" step")
		f.text = fmt.Sprintf("*/%d", step)
		add(low, high, step)
	case 3:
		from, to := number.Draw(t, name+" from"), number.Draw(t, name+" to")
		from, to = min(from, to), max(from, to)
		f.text = fmt.Sprintf("%d-%d", from, to)
		add(from, to, 1)
	default:
		var texts []string
		for range rapid.IntRange(1, 3).Draw(t, name+" numbers") {
			n := number.Draw(t, name)
			texts = append(texts, fmt.Sprint(n))
			add(n, n, 1)
		}
		f.text = strings.Join(texts, ",")
	}
	return f
}

// someSchedule returns an expression that comes due.
func someSchedule(t *rapid.T, name string) modelSchedule {
	m := modelSchedule{
		minute:   someField(t, name+" minute", 0, 59),
		hour:     someField(t, name+" hour", 0, 23),
		monthDay: someField(t, name+" day", 1, 31),
		month:    modelField{text: "*", values: map[int]bool{}},
		weekday:  someField(t, name+" weekday", 0, 6),
	}
	for month := range 12 {
		m.month.values[month+1] = true
	}
	if rapid.IntRange(0, 3).Draw(t, name+" months") == 0 {
		m.month = someField(t, name+" month", 1, 12)
		if m.monthDay.star() || m.weekday.star() {
			m.monthDay.values[1], m.monthDay.text = true, m.monthDay.text+",1"
		}
	}
	if rapid.IntRange(0, 19).Draw(t, name+" leap day") == 0 {
		m.monthDay, m.month = modelField{"29", map[int]bool{29: true}}, modelField{"2", map[int]bool{2: true}}
	}
	return m
}

// onDay says whether the schedule is due on a day since 1970-01-01.
func (m modelSchedule) onDay(day int64) bool {
	date := time.Unix(day*secondsPerDay, 0).UTC()
	monthDay, weekday := m.monthDay.values[date.Day()], m.weekday.values[int(date.Weekday())]
	if !m.month.values[int(date.Month())] {
		return false
	}
	if strings.Contains(m.monthDay.text, "*,") || strings.HasSuffix(m.monthDay.text, "*") || m.weekday.star() {
		return monthDay && weekday
	}
	return monthDay || weekday
}

// atMinute says whether the schedule is due at a minute of the days on which it is due.
func (m modelSchedule) atMinute(minute int64) bool {
	return m.hour.values[int(minute/60)] && m.minute.values[int(minute%60)]
}

// matcher returns a function that says whether a minute of the wall clock matches. It remembers the latest day.
func (m modelSchedule) matcher() func(minute int64) bool {
	var times [minutesPerDay]bool
	for minute := range times {
		times[minute] = m.atMinute(int64(minute))
	}
	day, due := int64(-1), false
	return func(minute int64) bool {
		if d := floorDiv(minute, minutesPerDay); d != day {
			day, due = d, m.onDay(d)
		}
		return due && times[minuteOfDay(minute)]
	}
}

// wallClock is what the clocks of a zone show in each minute of a time.
type wallClock struct {
	start   int64   // in minutes since 1970, by UTC
	minutes []int64 // of the wall clock, since 1970-01-01
}

func newWallClock(location *time.Location, from, until time.Time) wallClock {
	w := wallClock{start: from.Unix() / 60}
	for at := w.start; at < until.Unix()/60; at++ {
		_, offset := time.Unix(at*60, 0).In(location).Zone()
		w.minutes = append(w.minutes, at+int64(offset/60))
	}
	return w
}

// due returns the due times of a schedule. The first three days show which times of day have been.
func (w wallClock) due(m modelSchedule) []time.Time {
	matches := m.matcher()
	everyHour := len(m.hour.values) == 24
	repeats := everyHour || strings.Contains(m.hour.text, "*")
	var all []time.Time
	newest := w.minutes[0]
	for i, minute := range w.minutes {
		due := (repeats || minute > newest) && matches(minute)
		if i > 0 && !everyHour {
			for skipped := w.minutes[i-1] + 1; skipped < minute; skipped++ {
				due = matches(skipped) || due
			}
		}
		newest = max(newest, minute)
		if due && i >= 3*minutesPerDay {
			all = append(all, time.Unix((w.start+int64(i))*60, 0).UTC())
		}
	}
	return all
}

// places are zones at times in which their clocks change, and one in which there is no 29 February for eight years.
var places = []struct {
	zone       string
	year, days int
}{
	{"UTC", 2027, 800},
	{"UTC", 2096, 8 * 366},
	{"Europe/Berlin", 2027, 800},
	{"America/New_York", 2027, 800},
	{"Australia/Lord_Howe", 2027, 800},
	{"America/Sao_Paulo", 2018, 400},
	{"Africa/Cairo", 2024, 400},
	{"Asia/Beirut", 2023, 400},
	{"America/Havana", 2026, 400},
	{"Pacific/Apia", 2011, 800},
	{"Africa/Casablanca", 2027, 400},
	{"Antarctica/Troll", 2027, 400},
	{"Asia/Kathmandu", 2027, 100},
	{"America/Santiago", 2039, 1000},
	{"Asia/Pyongyang", 2015, 400},
	{"America/Caracas", 2016, 400},
}

func TestSchedule_againstEveryMinute(t *testing.T) {
	t.Parallel()
	clocks := map[int]wallClock{}
	rapid.Check(t, func(t *rapid.T) {
		m := someSchedule(t, "")
		i := rapid.IntRange(0, len(places)-1).Draw(t, "place")
		place := places[i]
		s, err := Parse(m.String(), place.zone)
		if err != nil {
			t.Fatal(err)
		}
		from := time.Date(place.year, time.January, 1, 0, 0, 0, 0, time.UTC)
		if _, ok := clocks[i]; !ok {
			clocks[i] = newWallClock(s.Location(), from, from.AddDate(0, 0, place.days))
		}
		want := clocks[i].due(m)
		from = from.AddDate(0, 0, 3).Add(-1)
		until := from.AddDate(0, 0, place.days-3)
		if n := s.Count(from, until, 1e9); n != len(want) {
			t.Errorf("%s: Count has %d, want %d", s, n, len(want))
		}
		// From there on, some hundred due times in a row, and then a few at random.
		begin := rapid.IntRange(0, len(want)).Draw(t, "begin")
		at := from
		if begin > 0 {
			at = want[begin-1]
		}
		for _, w := range want[begin:min(begin+500, len(want))] {
			next := s.Next(at)
			if !next.Equal(w) {
				t.Fatalf("%s: Next of %v is %v, want %v", s, at, next, w)
			}
			if newest, ok := s.Latest(at, w.Add(59*time.Second)); !ok || !newest.Equal(w) {
				t.Fatalf("%s: Latest in (%v, %v] is %v, want %v", s, at, w, newest, w)
			}
			at = next
		}
		for range 20 {
			minute := rapid.Int64Range(0, int64(until.Sub(from)/time.Second))
			since, to := minute.Draw(t, "since"), minute.Draw(t, "until")
			since, to = min(since, to), max(since, to)
			checkSpan(t, s, want, from.Add(time.Duration(since)*time.Second), from.Add(time.Duration(to)*time.Second))
		}
	})
}

// checkSpan compares what a schedule has in (since, until] with a list of its due times.
func checkSpan(t *rapid.T, s *Schedule, all []time.Time, since, until time.Time) {
	t.Helper()
	low, high := after(all, since), after(all, until)
	if n := s.Count(since, until, 1e9); n != high-low {
		t.Fatalf("%s: Count in (%v, %v] is %d, want %d", s, since, until, n, high-low)
	}
	newest, ok := s.Latest(since, until)
	if ok != (high > low) || ok && !newest.Equal(all[high-1]) {
		t.Fatalf("%s: Latest in (%v, %v] is %v %t, want the last of %d", s, since, until, newest, ok, high-low)
	}
	if next := s.Next(since); low < len(all) && !next.Equal(all[low]) {
		t.Fatalf("%s: Next of %v is %v, want %v", s, since, next, all[low])
	}
}

// after returns the index of the first time after another one.
func after(all []time.Time, at time.Time) int {
	i, found := slices.BinarySearchFunc(all, at, time.Time.Compare)
	if found {
		i++
	}
	return i
}

// modelDistances returns the smallest distance of two due times of a, and of one of a and one of b, in minutes by the
// wall clock of a. The clocks of b are behind by some minutes.
func modelDistances(a, b modelSchedule, ahead int64) (granularity, offset int64) {
	const none = int64(1) << 40
	matchesA, matchesB := a.matcher(), b.matcher()
	granularity, offset = none, none
	lastA, lastB := -none, -none
	begin := time.Date(2007, time.January, 1, 0, 0, 0, 0, time.UTC).Unix() / 60
	end := time.Date(2037, time.January, 1, 0, 0, 0, 0, time.UTC).Unix() / 60
	candidates := times(a, b, ahead)
	for day := begin; day < end && (granularity > 1 || offset > 0); day += minutesPerDay {
		for _, c := range candidates {
			minute := day + c
			inA, inB := matchesA(minute), matchesB(minute-ahead)
			if inA {
				granularity = min(granularity, minute-lastA)
				lastA = minute
			}
			if inB {
				lastB = minute
			}
			if inA || inB {
				offset = min(offset, max(lastA-lastB, lastB-lastA))
			}
		}
	}
	return granularity, offset
}

// times returns the minutes of a day at which a or b can be due.
func times(a, b modelSchedule, ahead int64) []int64 {
	var all []int64
	for minute := range int64(minutesPerDay) {
		of := minuteOfDay(minute - ahead)
		if a.atMinute(minute) || b.atMinute(of) {
			all = append(all, minute)
		}
	}
	return all
}

func TestDistances_againstEveryMinute(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := someSchedule(t, "a"), someSchedule(t, "b")
		zones := rapid.SampledFrom([][2]string{
			{"UTC", "UTC"},
			{"UTC", "UTC"},
			{"Europe/Berlin", "Europe/Berlin"},
			{"Europe/Berlin", "Asia/Kathmandu"},
			{"Europe/Berlin", "America/New_York"},
			{"Australia/Lord_Howe", "UTC"},
			{"Pacific/Kiritimati", "Pacific/Pago_Pago"},
		}).Draw(t, "zones")
		first, err := Parse(a.String(), zones[0])
		if err != nil {
			t.Fatal(err)
		}
		second, err := Parse(b.String(), zones[1])
		if err != nil {
			t.Fatal(err)
		}
		aheads := map[int64]bool{}
		for hour := range 365 * 24 {
			at := time.Date(2027, time.January, 1, hour, 0, 0, 0, time.UTC)
			aheads[(offsetAt(at.In(first.Location()))-offsetAt(at.In(second.Location())))/60] = true
		}
		granularity, offset := int64(0), int64(1)<<40
		for ahead := range aheads {
			g, o := modelDistances(a, b, ahead)
			granularity, offset = g, min(offset, o)
		}
		if got := first.Granularity(); got != time.Duration(granularity)*time.Minute {
			t.Errorf("granularity of %s: %v, want %d minutes", first, got, granularity)
		}
		for _, got := range []time.Duration{Offset(first, second), Offset(second, first)} {
			if got != time.Duration(offset)*time.Minute {
				t.Errorf("offset of %s and %s: %v, want %d minutes", first, second, got, offset)
			}
		}
	})
}
