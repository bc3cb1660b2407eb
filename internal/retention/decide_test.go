package retention

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // so that the machine's time zones do not matter

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func at(tb rapid.TB, s string) time.Time {
	tb.Helper()
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func zone(tb rapid.TB, name string) *time.Location {
	tb.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// points returns good points, one per field: a time, which is also the ID, then "!" if it is not good, then "*" if it is pinned.
func points(tb testing.TB, fields string) []Point {
	tb.Helper()
	var all []Point
	for _, f := range strings.Fields(fields) {
		id := strings.TrimRight(f, "!*")
		all = append(all, Point{ID: id, Time: at(tb, id), Good: !strings.Contains(f, "!"), Pinned: strings.Contains(f, "*")})
	}
	return all
}

// told returns a line for each decision, as a dry run would print it.
func told(decisions []Decision) []string {
	var lines []string
	for _, d := range decisions {
		if !d.Keep {
			lines = append(lines, "- "+d.Point.ID)
			continue
		}
		lines = append(lines, d.Point.ID+": "+strings.Join(d.Reasons, ", "))
	}
	return lines
}

func TestDecide(t *testing.T) {
	t.Parallel()
	berlin, stJohns := zone(t, "Europe/Berlin"), zone(t, "America/St_Johns")
	for name, test := range map[string]struct {
		policy Policy
		now    string
		points string
		want   []string
	}{
		"nothing is there": {policy: Policy{Last: 1}},
		"the last ones": {
			policy: Policy{Last: 2},
			points: "2026-01-01T00:00:00Z 2026-01-03T00:00:00Z 2026-01-02T00:00:00Z",
			want: []string{
				"2026-01-03T00:00:00Z: last good one, last 2",
				"2026-01-02T00:00:00Z: last 2",
				"- 2026-01-01T00:00:00Z",
			},
		},
		"the newest of a period counts, and periods without a point cost nothing": {
			policy: Policy{Daily: 2},
			points: "2026-01-01T03:00:00Z 2026-01-01T23:59:59Z 2026-03-01T00:00:00Z",
			want: []string{
				"2026-03-01T00:00:00Z: last good one, daily 2026-03-01",
				"2026-01-01T23:59:59Z: daily 2026-01-01",
				"- 2026-01-01T03:00:00Z",
			},
		},
		"every rule says so": {
			policy: Policy{Last: 1, Hourly: 1, Daily: 1, Weekly: 1, Monthly: 1, Yearly: 1, Within: Span{Days: 1}},
			points: "2027-01-01T10:30:00Z*",
			want: []string{"2027-01-01T10:30:00Z: pinned, last good one, last 1, hourly 2027-01-01T10:00Z, daily 2027-01-01, " +
				"weekly 2026-W53, monthly 2027-01, yearly 2027, within 1d"},
		},
		"ISO weeks begin on Monday and do not end with the year": {
			policy: Policy{Weekly: 9},
			points: "2026-12-27T12:00:00Z 2026-12-28T12:00:00Z 2026-12-31T12:00:00Z 2027-01-03T12:00:00Z 2027-01-04T12:00:00Z",
			want: []string{
				"2027-01-04T12:00:00Z: last good one, weekly 2027-W01",
				"2027-01-03T12:00:00Z: weekly 2026-W53",
				"- 2026-12-31T12:00:00Z",
				"- 2026-12-28T12:00:00Z",
				"2026-12-27T12:00:00Z: weekly 2026-W52",
			},
		},
		"a day begins where the policy is": {
			policy: Policy{Daily: 9, Location: berlin},
			points: "2026-06-01T21:59:00Z 2026-06-01T22:00:00Z 2026-06-02T21:59:00Z",
			want: []string{
				"2026-06-02T21:59:00Z: last good one, daily 2026-06-02",
				"- 2026-06-01T22:00:00Z",
				"2026-06-01T21:59:00Z: daily 2026-06-01",
			},
		},
		"a day of 25 hours, with an hour twice": {
			policy: Policy{Hourly: 9, Daily: 9, Location: berlin},
			points: "2026-10-24T22:00:00Z 2026-10-25T00:10:00Z 2026-10-25T01:10:00Z 2026-10-25T22:59:00Z",
			want: []string{
				"2026-10-25T22:59:00Z: last good one, hourly 2026-10-25T23:00+01:00, daily 2026-10-25",
				"2026-10-25T01:10:00Z: hourly 2026-10-25T02:00+01:00",
				"2026-10-25T00:10:00Z: hourly 2026-10-25T02:00+02:00",
				"2026-10-24T22:00:00Z: hourly 2026-10-25T00:00+02:00",
			},
		},
		"a day of 23 hours": {
			policy: Policy{Daily: 9, Location: berlin},
			points: "2026-03-28T23:00:00Z 2026-03-29T21:59:00Z 2026-03-29T22:00:00Z",
			want: []string{
				"2026-03-29T22:00:00Z: last good one, daily 2026-03-30",
				"2026-03-29T21:59:00Z: daily 2026-03-29",
				"- 2026-03-28T23:00:00Z",
			},
		},
		// Until 2011 Newfoundland's clocks went back one minute past midnight: it was Saturday, then Sunday, then Saturday again.
		"a day that is there twice is one day": {
			policy: Policy{Daily: 2, Location: stJohns},
			points: "2010-11-07T02:00:00Z 2010-11-07T02:30:30Z 2010-11-07T02:40:00Z",
			want: []string{
				"2010-11-07T02:40:00Z: last good one, daily 2010-11-06",
				"2010-11-07T02:30:30Z: daily 2010-11-07",
				"- 2010-11-07T02:00:00Z",
			},
		},
		"within is seen from the newest good point, its end included": {
			policy: Policy{Within: Span{Days: 7}},
			points: "2026-01-01T11:59:59Z 2026-01-01T12:00:00Z 2026-01-08T12:00:00Z 2026-01-20T00:00:00Z!",
			want: []string{
				"2026-01-20T00:00:00Z: not good, but no newer one is good",
				"2026-01-08T12:00:00Z: last good one, within 7d",
				"2026-01-01T12:00:00Z: within 7d",
				"- 2026-01-01T11:59:59Z",
			},
		},
		"a day within is a day of the calendar": {
			policy: Policy{Within: Span{Days: 1}, Location: berlin},
			points: "2026-10-24T21:29:00Z 2026-10-24T21:30:00Z 2026-10-25T22:30:00Z",
			want: []string{
				"2026-10-25T22:30:00Z: last good one, within 1d",
				"2026-10-24T21:30:00Z: within 1d",
				"- 2026-10-24T21:29:00Z",
			},
		},
		"a pinned point stays, and takes the slot that it would take anyway": {
			policy: Policy{Daily: 1},
			points: "2026-01-01T00:00:00Z* 2026-01-02T00:00:00Z 2026-01-02T01:00:00Z* 2025-01-01T00:00:00Z!*",
			want: []string{
				"2026-01-02T01:00:00Z: pinned, last good one, daily 2026-01-02",
				"- 2026-01-02T00:00:00Z",
				"2026-01-01T00:00:00Z: pinned",
				"2025-01-01T00:00:00Z: pinned, not good, removed only on request",
			},
		},
		"what is not good takes no slot and stays": {
			policy: Policy{Last: 1, Daily: 2},
			points: "2026-01-01T00:00:00Z 2026-01-02T00:00:00Z 2026-01-02T01:00:00Z! 2026-01-03T00:00:00Z!",
			want: []string{
				"2026-01-03T00:00:00Z: not good, but no newer one is good",
				"2026-01-02T01:00:00Z: not good, but no newer one is good",
				"2026-01-02T00:00:00Z: last good one, last 1, daily 2026-01-02",
				"2026-01-01T00:00:00Z: daily 2026-01-01",
			},
		},
		"what is not good goes on request, once there is a newer good one": {
			policy: Policy{Within: Span{Years: 1}, RemoveDamaged: true},
			points: "2026-01-01T00:00:00Z! 2026-01-02T00:00:00Z 2026-01-01T01:00:00Z!* 2026-01-03T00:00:00Z!",
			want: []string{
				"2026-01-03T00:00:00Z: not good, but no newer one is good",
				"2026-01-02T00:00:00Z: last good one, within 1y",
				"2026-01-01T01:00:00Z: pinned",
				"- 2026-01-01T00:00:00Z",
			},
		},
		"without a good one nothing goes": {
			policy: Policy{Last: 1, RemoveDamaged: true},
			points: "2026-01-01T00:00:00Z! 2026-01-02T00:00:00Z!",
			want: []string{
				"2026-01-02T00:00:00Z: not good, but no newer one is good",
				"2026-01-01T00:00:00Z: not good, but no newer one is good",
			},
		},
		"the future stays and does not count": {
			policy: Policy{Last: 1, Within: Span{Hours: 1}, RemoveDamaged: true},
			now:    "2026-01-02T00:00:00Z",
			points: "2026-01-01T00:00:00Z 2026-01-02T00:00:00Z 2026-01-02T00:00:01Z 2099-01-01T00:00:00Z!",
			want: []string{
				"2099-01-01T00:00:00Z: in the future, not good, but no newer one is good",
				"2026-01-02T00:00:01Z: in the future",
				"2026-01-02T00:00:00Z: last good one, last 1, within 1h",
				"- 2026-01-01T00:00:00Z",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := at(t, "2100-01-01T00:00:00Z")
			if test.now != "" {
				now = at(t, test.now)
			}
			got, err := Decide(test.policy, now, points(t, test.points))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, told(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecide_ordersEqualTimesByID(t *testing.T) {
	t.Parallel()
	when := at(t, "2026-01-01T00:00:00Z")
	got, err := Decide(Policy{Last: 1}, when, []Point{
		{ID: "b", Time: when, Good: true},
		{ID: "c", Time: when.In(zone(t, "Asia/Tokyo")), Good: true},
		{ID: "a", Time: when, Good: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c: last good one, last 1", "- b", "- a"}, told(got)); diff != "" {
		t.Error(diff)
	}
}

func TestDecide_decidesNothingWithAnError(t *testing.T) {
	t.Parallel()
	when := at(t, "2026-01-01T00:00:00Z")
	good := []Point{{ID: "a", Time: when, Good: true}}
	for name, test := range map[string]struct {
		policy Policy
		points []Point
		want   string
	}{
		"empty":             {Policy{}, good, ErrEmpty.Error()},
		"empty but damaged": {Policy{RemoveDamaged: true}, good, ErrEmpty.Error()},
		"last":              {Policy{Last: -1}, good, "keep-last is -1: it cannot be negative"},
		"hourly":            {Policy{Hourly: -2, Last: 1}, good, "keep-hourly is -2: it cannot be negative"},
		"daily":             {Policy{Daily: -2, Last: 1}, good, "keep-daily is -2: it cannot be negative"},
		"weekly":            {Policy{Weekly: -2, Last: 1}, good, "keep-weekly is -2: it cannot be negative"},
		"monthly":           {Policy{Monthly: -2, Last: 1}, good, "keep-monthly is -2: it cannot be negative"},
		"yearly":            {Policy{Yearly: -2, Last: 1}, good, "keep-yearly is -2: it cannot be negative"},
		"within":            {Policy{Within: Span{Years: 1, Days: -3}}, good, "keep-within: 1y-3d is negative"},
		"within too long":   {Policy{Within: Span{Hours: 1e9}}, good, "keep-within: 1000000000h is longer"},
		"no ID":             {Policy{Last: 1}, []Point{{Time: when}}, "a restore point has no ID"},
		"no time":           {Policy{Last: 1}, []Point{{ID: "a"}}, "restore point a has no time"},
		"twice":             {Policy{Last: 1}, slices.Concat(good, good), "restore point a is given twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Decide(test.policy, when, test.points)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) || got != nil {
				t.Errorf("%v, %v", got, err)
			}
			if errors.Is(err, ErrEmpty) != (test.want == ErrEmpty.Error()) {
				t.Errorf("%v is ErrEmpty, or should be", err)
			}
		})
	}
}

// A year of hourly points: this is what an administrator finds on New Year's Eve.
func TestDecide_overAYear(t *testing.T) {
	t.Parallel()
	for _, location := range []*time.Location{time.UTC, zone(t, "Europe/Berlin"), zone(t, "Australia/Lord_Howe")} {
		t.Run(location.String(), func(t *testing.T) {
			t.Parallel()
			var all []Point
			end := time.Date(2027, 1, 1, 0, 0, 0, 0, location)
			for when := time.Date(2026, 1, 1, 0, 0, 0, 0, location); when.Before(end); when = when.Add(time.Hour) {
				all = append(all, Point{ID: when.UTC().Format(time.RFC3339), Time: when, Good: true})
			}
			if len(all) != 365*24 {
				t.Fatalf("%d points", len(all))
			}
			policy := Policy{Last: 3, Hourly: 5, Daily: 7, Weekly: 4, Monthly: 12, Yearly: 3, Within: Span{Hours: 8}, Location: location}
			decisions, err := Decide(policy, end, all)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string][]string{}
			keep := func(when time.Time, reason string) {
				id := when.UTC().Format(time.RFC3339)
				want[id] = append(want[id], reason)
			}
			last := all[len(all)-1].Time
			keep(last, "last good one")
			for i := range 3 {
				keep(last.Add(-time.Duration(i)*time.Hour), "last 3")
			}
			for i := range 5 {
				when := last.Add(-time.Duration(i) * time.Hour)
				keep(when, "hourly "+when.Format("2006-01-02T15:00Z07:00"))
			}
			lastBefore := func(year int, month time.Month, day int) time.Time {
				end := time.Date(year, month, day, 0, 0, 0, 0, location)
				i := slices.IndexFunc(all, func(p Point) bool { return !p.Time.Before(end) })
				if i < 0 {
					i = len(all)
				}
				return all[i-1].Time
			}
			for i := range 7 {
				keep(lastBefore(2027, 1, 1-i), fmt.Sprintf("daily 2026-12-%d", 31-i))
			}
			// 31 December 2026 is a Thursday.
			keep(last, "weekly 2026-W53")
			for i := range 3 {
				keep(lastBefore(2026, 12, 28-7*i), fmt.Sprintf("weekly 2026-W%d", 52-i))
			}
			for i := range 12 {
				keep(lastBefore(2027, time.Month(1-i), 1), fmt.Sprintf("monthly 2026-%02d", 12-i))
			}
			keep(last, "yearly 2026")
			for i := range 9 {
				keep(last.Add(-time.Duration(i)*time.Hour), "within 8h")
			}
			got := map[string][]string{}
			for _, d := range decisions {
				if d.Keep {
					got[d.Point.ID] = d.Reasons
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A clock that was behind gives the newest content an old time.
func TestDecide_keepsWhatWasMadeLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		good bool
		want string
	}{
		"good":    {true, "behind: made last, by a clock that was behind"},
		"damaged": {false, "- behind"},
	} {
		got, err := Decide(Policy{Last: 1, RemoveDamaged: true}, at(t, "2026-01-03T00:00:00Z"), []Point{
			{ID: "before", Time: at(t, "2026-01-01T00:00:00Z"), Good: true},
			{ID: "newest", Time: at(t, "2026-01-02T00:00:00Z"), Good: true},
			{ID: "behind", Time: at(t, "1970-01-02T00:00:00Z"), Good: c.good, MadeLast: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"newest: last good one, last 1", "- before", c.want}, told(got)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
