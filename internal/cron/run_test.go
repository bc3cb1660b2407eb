package cron

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	const never = "0001-01-01T00:00:00Z"
	for _, c := range []struct {
		name, expression, last, now string
		deadline                    time.Duration
		due                         string
		run                         bool
		missed                      int
	}{
		{"before the first one", "0 1 * * *", "2027-01-01T12:00:00Z", "2027-01-02T00:59:59Z", 0, never, false, 0},
		{"on time", "0 1 * * *", "2027-01-01T12:00:00Z", "2027-01-02T01:00:00Z", 0, "2027-01-02T01:00:00Z", true, 0},
		{"it has run", "0 1 * * *", "2027-01-02T01:00:00Z", "2027-01-02T01:00:05Z", 0, never, false, 0},
		{
			"a week off", "0 1 * * *", "2027-01-02T01:00:00Z", "2027-01-09T07:00:00Z",
			0, "2027-01-09T01:00:00Z", true, 6,
		},
		{"created at a due time", "0 1 * * *", "2027-01-02T01:00:00Z", "2027-01-03T00:00:00Z", 0, never, false, 0},
		{
			"in time", "0 1 * * *", "2027-01-02T01:00:00Z", "2027-01-03T02:00:00Z",
			time.Hour, "2027-01-03T01:00:00Z", true, 0,
		},
		{
			"too late", "0 1 * * *", "2027-01-02T01:00:00Z", "2027-01-03T02:00:01Z",
			time.Hour, "2027-01-03T01:00:00Z", false, 1,
		},
		{
			"all too late", "0 1 * * *", "2027-01-01T01:00:00Z", "2027-01-03T23:00:00Z",
			time.Hour, "2027-01-03T01:00:00Z", false, 2,
		},
		{"the clock went back", "0 1 * * *", "2027-01-02T01:00:00Z", "2026-12-31T01:00:00Z", 0, never, false, 0},
		{
			"no deadline below zero", "0 1 * * *", "2027-01-02T01:00:00Z", "2027-01-03T02:00:00Z",
			-1, "2027-01-03T01:00:00Z", true, 0,
		},
		{
			"years off", "* * * * *", "2027-01-01T00:00:00Z", "2037-01-01T00:00:30Z",
			0, "2037-01-01T00:00:00Z", true, 3653*1440 - 1,
		},
	} {
		d := mustParse(t, c.expression, "").Decide(parseTime(t, c.last), parseTime(t, c.now), c.deadline)
		if !d.Due.Equal(parseTime(t, c.due)) || d.Run != c.run || d.Missed != c.missed {
			t.Errorf("%s: %+v, want %s %t %d", c.name, d, c.due, c.run, c.missed)
		}
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	midnight := mustParse(t, "0 0 * * *", "")
	if got := midnight.Spread("6f1c2d7e-0b5a-4d53-9a51-3f7a5d1d9c10", time.Hour); got != 29*time.Minute+3*time.Second {
		t.Errorf("%v: schedules of earlier versions would begin at another time", got)
	}
	random := rand.NewChaCha8([32]byte{1})
	var tenths [10]int
	for range 1000 {
		id, err := uuid.NewRandomFromReader(random)
		if err != nil {
			t.Fatal(err)
		}
		spread := midnight.Spread(id.String(), time.Hour)
		if spread < 0 || spread >= time.Hour || spread != midnight.Spread(id.String(), time.Hour) {
			t.Fatalf("%s: %v", id, spread)
		}
		tenths[spread/(6*time.Minute)]++
	}
	for _, n := range tenths {
		if n < 60 || n > 140 {
			t.Fatalf("of a thousand schedules the tenths of the hour have %v", tenths)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s, err := Parse(someSchedule(t, "").String(), "")
		if err != nil {
			t.Fatal(err)
		}
		jitter := time.Duration(rapid.Int64().Draw(t, "jitter"))
		got := s.Spread(rapid.String().Draw(t, "uid"), jitter)
		if got < 0 || got >= s.Granularity() || got > 0 && got >= jitter {
			t.Errorf("%s with jitter %v: %v", s, jitter, got)
		}
	})
}

// yearOfSchedules is how many schedules live through the year of TestSchedule_aYearInAMinute.
const yearOfSchedules = 200

// aYear is what a schedule has been told in the course of a year.
type aYear struct {
	ran    []time.Time
	missed int
}

// A controller asks each of 200 schedules what to do through a year in which its clock jumps forwards and backwards,
// and it stands still for minutes or weeks. It remembers nothing but the newest due time that it recorded.
func TestSchedule_aYearInAMinute(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	clocks := map[int]wallClock{}
	kinds := map[string]int{}
	for i := range yearOfSchedules {
		m := rapid.Custom(func(t *rapid.T) modelSchedule { return someSchedule(t, "") }).Example(int(seed>>1) + i)
		p := random.IntN(len(places))
		s := mustParse(t, m.String(), places[p].zone)
		begin := time.Date(places[p].year, time.January, 1, 0, 0, 0, 0, time.UTC)
		if _, ok := clocks[p]; !ok {
			clocks[p] = newWallClock(s.Location(), begin, begin.AddDate(0, 0, min(places[p].days, 400)))
		}
		created := begin.AddDate(0, 0, 3).Add(time.Duration(random.IntN(1e6)) * time.Second)
		end := begin.AddDate(0, 0, min(places[p].days, 400)-1)
		deadline := []time.Duration{0, time.Minute, time.Hour, 24 * time.Hour}[random.IntN(4)]

		year, newest := live(t, random, s, created, end, deadline, kinds)
		all := clocks[p].due(m)
		all = all[after(all, created):after(all, newest)]
		year.check(t, fmt.Sprintf("seed %d: %s with deadline %v from %v to %v", seed, s, deadline, created, newest),
			all)
	}
	if len(kinds) < 4 {
		t.Errorf("too few kinds of steps of the clock: %v", kinds)
	}
}

// live returns what a schedule is told until the end, and the newest time that the clock has shown.
func live(
	t *testing.T, random *rand.Rand, s *Schedule, created, end time.Time, deadline time.Duration, kinds map[string]int,
) (aYear, time.Time) {
	t.Helper()
	var year aYear
	last, now, newest := created, created, created
	for now.Before(end) {
		d := s.Decide(last, now, deadline)
		switch {
		case d.Due.IsZero() && (d.Run || d.Missed != 0):
			t.Fatalf("%s: %+v without a due time", s, d)
		case d.Due.IsZero():
		case !d.Due.After(last) || d.Due.After(now):
			t.Fatalf("%s: %v is not in (%v, %v]", s, d.Due, last, now)
		case d.Run && deadline > 0 && now.Sub(d.Due) > deadline:
			t.Fatalf("%s: %v runs at %v, after its deadline", s, d.Due, now)
		default:
			last = d.Due // all that survives a restart
			year.missed += d.Missed
			if d.Run {
				year.ran = append(year.ran, d.Due)
			}
		}
		if again := s.Decide(last, now, deadline); again != (Decision{}) {
			t.Fatalf("%s: %+v, and then %+v at the same time", s, d, again)
		}
		switch next := s.Next(now); random.IntN(8) {
		case 0:
			now = now.Add(-time.Duration(random.IntN(3*24*3600)) * time.Second)
			kinds["back"]++
		case 1:
			now = now.Add(time.Duration(random.IntN(30*24*3600)) * time.Second)
			kinds["far"]++
		case 2:
			now = now.Add(time.Duration(random.IntN(7200)) * time.Second)
			kinds["near"]++
		case 3:
			now = next.Add(-time.Nanosecond)
			kinds["just before"]++
		default:
			now = next
			kinds["on time"]++
		}
		if now.After(end) {
			now = end
		}
		if now.After(newest) {
			newest = now
		}
	}
	d := s.Decide(last, now, deadline)
	year.missed += d.Missed
	if d.Run {
		year.ran = append(year.ran, d.Due)
	}
	return year, newest
}

// check compares what ran, and how much was missed, with all due times of the year.
func (y aYear) check(t *testing.T, what string, all []time.Time) {
	t.Helper()
	for i, run := range y.ran {
		if i > 0 && !run.After(y.ran[i-1]) {
			t.Fatalf("%s: %v ran after %v", what, run, y.ran[i-1])
		}
		if !slices.ContainsFunc(all, run.Equal) {
			t.Fatalf("%s: %v ran and was not due", what, run)
		}
	}
	if len(y.ran)+y.missed != len(all) {
		t.Fatalf("%s: %d ran and %d were missed of %d", what, len(y.ran), y.missed, len(all))
	}
}
