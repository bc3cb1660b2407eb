package cron

import (
	"slices"
	"testing"
	"time"
)

func parseTime(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// checkDue compares the due times after since and not after until with the wanted ones, by each of the ways to ask
// for them.
func checkDue(t *testing.T, s *Schedule, since, until time.Time, want []time.Time) {
	t.Helper()
	var got []time.Time
	for due := s.Next(since); !due.IsZero() && !due.After(until); due = s.Next(due) {
		got = append(got, due)
	}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Fatalf("%s in (%v, %v]: Next has\n%v, want\n%v", s, since, until, got, want)
	}
	if n := s.Count(since, until, len(want)+1); n != len(want) {
		t.Fatalf("%s in (%v, %v]: Count has %d, want %d", s, since, until, n, len(want))
	}
	got = nil
	for due, ok := s.Latest(since, until); ok; due, ok = s.Latest(since, due.Add(-time.Nanosecond)) {
		got = append(got, due)
	}
	if slices.Reverse(got); !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Fatalf("%s in (%v, %v]: Latest has\n%v, want\n%v", s, since, until, got, want)
	}
}

// These are the days on which the clocks of a zone change.
func TestSchedule_daylightSaving(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		zone, expression, since, until string
		want                           []string
	}{
		// 02:00 becomes 03:00.
		{
			"Europe/Berlin", "30 2 * * *", "2027-03-27T12:00:00+01:00", "2027-03-29T12:00:00+02:00",
			[]string{"2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"},
		},
		{
			"Europe/Berlin", "0 2 * * *", "2027-03-28T00:00:00+01:00", "2027-03-28T12:00:00+02:00",
			[]string{"2027-03-28T03:00:00+02:00"},
		},
		{
			"Europe/Berlin", "0 3 * * *", "2027-03-28T00:00:00+01:00", "2027-03-28T12:00:00+02:00",
			[]string{"2027-03-28T03:00:00+02:00"},
		},
		{
			"Europe/Berlin", "0,30 2,3 * * *", "2027-03-28T00:00:00+01:00", "2027-03-28T12:00:00+02:00",
			[]string{"2027-03-28T03:00:00+02:00", "2027-03-28T03:30:00+02:00"},
		},
		{
			"Europe/Berlin", "* 2 * * *", "2027-03-28T00:00:00+01:00", "2027-03-28T12:00:00+02:00",
			[]string{"2027-03-28T03:00:00+02:00"},
		},
		{"Europe/Berlin", "30 2 * * 1", "2027-03-27T00:00:00+01:00", "2027-03-28T12:00:00+02:00", nil}, // it is a Sunday
		{
			"Europe/Berlin", "30 2 28 3 *", "2027-01-01T00:00:00Z", "2027-12-31T00:00:00Z",
			[]string{"2027-03-28T03:00:00+02:00"},
		},
		{
			"Europe/Berlin", "15 * * * *", "2027-03-28T00:30:00+01:00", "2027-03-28T04:00:00+02:00",
			[]string{"2027-03-28T01:15:00+01:00", "2027-03-28T03:15:00+02:00"},
		},
		{
			"Europe/Berlin", "*/30 * * * *", "2027-03-28T01:00:00+01:00", "2027-03-28T03:30:00+02:00",
			[]string{"2027-03-28T01:30:00+01:00", "2027-03-28T03:00:00+02:00", "2027-03-28T03:30:00+02:00"},
		},
		{
			"Europe/Berlin", "0 */2 * * *", "2027-03-27T23:00:00+01:00", "2027-03-28T06:00:00+02:00",
			[]string{
				"2027-03-28T00:00:00+01:00", "2027-03-28T03:00:00+02:00", "2027-03-28T04:00:00+02:00",
				"2027-03-28T06:00:00+02:00",
			},
		},
		// 03:00 becomes 02:00.
		{
			"Europe/Berlin", "30 2 * * *", "2027-10-31T00:00:00+02:00", "2027-10-31T12:00:00+01:00",
			[]string{"2027-10-31T02:30:00+02:00"},
		},
		{
			"Europe/Berlin", "0 2 * * *", "2027-10-31T00:00:00+02:00", "2027-10-31T12:00:00+01:00",
			[]string{"2027-10-31T02:00:00+02:00"},
		},
		{
			"Europe/Berlin", "0 3 * * *", "2027-10-31T00:00:00+02:00", "2027-10-31T12:00:00+01:00",
			[]string{"2027-10-31T03:00:00+01:00"},
		},
		{
			"Europe/Berlin", "*/30 2 * * *", "2027-10-31T00:00:00+02:00", "2027-10-31T12:00:00+01:00",
			[]string{"2027-10-31T02:00:00+02:00", "2027-10-31T02:30:00+02:00"},
		},
		{
			"Europe/Berlin", "15 * * * *", "2027-10-31T02:00:00+02:00", "2027-10-31T03:30:00+01:00",
			[]string{"2027-10-31T02:15:00+02:00", "2027-10-31T02:15:00+01:00", "2027-10-31T03:15:00+01:00"},
		},
		{
			"Europe/Berlin", "0 */2 * * *", "2027-10-31T00:30:00+02:00", "2027-10-31T04:00:00+01:00",
			[]string{"2027-10-31T02:00:00+02:00", "2027-10-31T02:00:00+01:00", "2027-10-31T04:00:00+01:00"},
		},
		{
			"Europe/Berlin", "0 0-23 * * *", "2027-10-31T01:30:00+02:00", "2027-10-31T03:00:00+01:00",
			[]string{"2027-10-31T02:00:00+02:00", "2027-10-31T02:00:00+01:00", "2027-10-31T03:00:00+01:00"},
		},
		{
			"America/New_York", "30 2 * * *", "2027-03-14T00:00:00-05:00", "2027-03-14T12:00:00-04:00",
			[]string{"2027-03-14T03:00:00-04:00"},
		},
		{
			"America/New_York", "30 1 * * *", "2027-11-07T00:00:00-04:00", "2027-11-07T12:00:00-05:00",
			[]string{"2027-11-07T01:30:00-04:00"},
		},
		{
			"America/New_York", "30 * * * *", "2027-11-07T00:45:00-04:00", "2027-11-07T02:00:00-05:00",
			[]string{"2027-11-07T01:30:00-04:00", "2027-11-07T01:30:00-05:00"},
		},
		// 02:00 becomes 02:30 in October and 01:30 in April.
		{
			"Australia/Lord_Howe", "15 2 * * *", "2027-10-03T00:00:00+10:30", "2027-10-03T12:00:00+11:00",
			[]string{"2027-10-03T02:30:00+11:00"},
		},
		{
			"Australia/Lord_Howe", "45 2 * * *", "2027-10-03T00:00:00+10:30", "2027-10-03T12:00:00+11:00",
			[]string{"2027-10-03T02:45:00+11:00"},
		},
		{
			"Australia/Lord_Howe", "45 1 * * *", "2027-04-04T00:00:00+11:00", "2027-04-04T12:00:00+10:30",
			[]string{"2027-04-04T01:45:00+11:00"},
		},
		{
			"Australia/Lord_Howe", "45 * * * *", "2027-04-04T01:00:00+11:00", "2027-04-04T02:00:00+10:30",
			[]string{"2027-04-04T01:45:00+11:00", "2027-04-04T01:45:00+10:30"},
		},
		// Midnight becomes 01:00.
		{
			"America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00-03:00", "2018-11-05T12:00:00-02:00",
			[]string{"2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		},
		{
			"America/Sao_Paulo", "@weekly", "2018-10-28T12:00:00-03:00", "2018-11-11T12:00:00-02:00",
			[]string{"2018-11-04T01:00:00-02:00", "2018-11-11T00:00:00-02:00"},
		},
		{
			"America/Sao_Paulo", "0 */24 * * *", "2018-11-03T12:00:00-03:00", "2018-11-04T12:00:00-02:00",
			[]string{"2018-11-04T01:00:00-02:00"},
		},
		{
			"Africa/Cairo", "@daily", "2024-04-25T12:00:00+02:00", "2024-04-26T12:00:00+03:00",
			[]string{"2024-04-26T01:00:00+03:00"},
		},
		{
			"Asia/Beirut", "15 0 * * *", "2024-03-30T12:00:00+02:00", "2024-03-31T12:00:00+03:00",
			[]string{"2024-03-31T01:00:00+03:00"},
		},
		// Midnight becomes 23:00 of the day before, which had it already.
		{
			"America/Sao_Paulo", "30 23 * * *", "2018-02-17T12:00:00-02:00", "2018-02-18T12:00:00-03:00",
			[]string{"2018-02-17T23:30:00-02:00"},
		},
		{
			"Africa/Cairo", "@daily", "2024-10-31T12:00:00+03:00", "2024-11-01T12:00:00+02:00",
			[]string{"2024-11-01T00:00:00+02:00"},
		},
		// 01:00 becomes midnight.
		{
			"America/Havana", "@daily", "2026-10-31T12:00:00-04:00", "2026-11-01T12:00:00-05:00",
			[]string{"2026-11-01T00:00:00-04:00"},
		},
		// There was no 30 December.
		{
			"Pacific/Apia", "0 2 * * *", "2011-12-29T00:00:00-10:00", "2012-01-01T00:00:00+14:00",
			[]string{"2011-12-29T02:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T02:00:00+14:00"},
		},
		{
			"Pacific/Apia", "@daily", "2011-12-28T12:00:00-10:00", "2012-01-01T00:00:00+14:00",
			[]string{"2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		},
		{
			"Pacific/Apia", "0 12 30 12 *", "2011-01-01T00:00:00Z", "2013-01-01T00:00:00Z",
			[]string{"2011-12-31T00:00:00+14:00", "2012-12-30T12:00:00+14:00"},
		},
		{
			"Pacific/Apia", "0 * * * *", "2011-12-29T22:30:00-10:00", "2011-12-31T01:00:00+14:00",
			[]string{"2011-12-29T23:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T01:00:00+14:00"},
		},
		// The clocks of a zone without minutes of its own: Amsterdam was 19 minutes and 32 seconds ahead.
		{
			"Europe/Amsterdam", "0 1 * * *", "1930-01-01T12:00:00Z", "1930-01-02T12:00:00Z",
			[]string{"1930-01-02T00:40:28Z"},
		},
	} {
		var want []time.Time
		for _, w := range c.want {
			want = append(want, parseTime(t, w))
		}
		checkDue(t, mustParse(t, c.expression, c.zone), parseTime(t, c.since), parseTime(t, c.until), want)
	}
}

// The library's own Next leaves out the day on which the time of day does not exist, so it is not used.
func TestSchedule_nightlyRunsEveryNight(t *testing.T) {
	t.Parallel()
	expressions := []string{"0 0 * * *", "30 0 * * *", "30 1 * * *", "15 2 * * *", "30 2 * * *", "59 23 * * *"}
	for _, zone := range []string{
		"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Africa/Cairo",
		"Africa/Casablanca",
		"Asia/Beirut", "America/Santiago",
	} {
		for _, expression := range expressions {
			s := mustParse(t, expression, zone)
			since := time.Date(2024, time.January, 1, 12, 0, 0, 0, s.Location())
			until := time.Date(2032, time.January, 1, 12, 0, 0, 0, s.Location())
			if n := s.Count(since, until, 1e6); n != 8*365+2 {
				t.Errorf("%s: %d in eight years", s, n)
			}
		}
	}
}

func TestSchedule_edges(t *testing.T) {
	t.Parallel()
	s := mustParse(t, "0 * * * *", "")
	ten := parseTime(t, "2027-01-01T10:00:00Z")
	for _, c := range []struct {
		since, until time.Time
		want         []time.Time
	}{
		{ten, ten, nil},
		{ten.Add(-1), ten, []time.Time{ten}},
		{ten.Add(-1), ten.Add(-1), nil},
		{ten.Add(-1), ten.Add(1), []time.Time{ten}},
		{ten, ten.Add(time.Hour - 1), nil},
		{ten, ten.Add(time.Hour), []time.Time{ten.Add(time.Hour)}},
		{ten, ten.Add(-24 * time.Hour), nil},
	} {
		checkDue(t, s, c.since, c.until, c.want)
	}
	for _, limit := range []int{-1, 0, 1, 7} {
		if n := s.Count(ten, ten.Add(24*time.Hour), limit); n != max(limit, 0) {
			t.Errorf("Count with limit %d: %d", limit, n)
		}
	}
	if n := s.Count(time.Time{}, time.Unix(1<<60, 0), 1e9); n != 87_649_415 { // all hours but the first
		t.Errorf("%d hours of 9999 years", n)
	}
	if got := s.Next(time.Time{}); !got.Equal(time.Time{}.Add(time.Hour)) {
		t.Errorf("Next of the zero time: %v", got)
	}
	for _, far := range []time.Time{time.Unix(latest, 0), time.Unix(1<<62, 0)} {
		if got := s.Next(far); !got.IsZero() {
			t.Errorf("Next of %v: %v", far, got)
		}
	}
	if got := s.Next(time.Unix(-1<<62, 0)); got.Unix() != earliest {
		t.Errorf("Next of a time before year 1: %v", got)
	}
	leap := mustParse(t, "0 0 29 2 *", "America/New_York")
	if got := leap.Next(parseTime(t, "2096-03-01T00:00:00Z")); got.Year() != 2104 {
		t.Errorf("Next after 2096: %v", got)
	}
	since, until := parseTime(t, "2090-01-01T00:00:00Z"), parseTime(t, "2104-02-01T00:00:00Z")
	if got, ok := leap.Latest(since, until); !ok || got.Year() != 2096 {
		t.Errorf("Latest before 2104: %v %t", got, ok)
	}
}

func BenchmarkNext(b *testing.B) {
	for _, zone := range []string{"UTC", "Europe/Berlin"} {
		s := mustParse(b, "0 0 29 2 *", zone)
		at := time.Date(2096, time.March, 1, 0, 0, 0, 0, time.UTC)
		b.Run(zone, func(b *testing.B) {
			for b.Loop() {
				s.Next(at)
			}
		})
	}
}

func BenchmarkLatest(b *testing.B) {
	for _, expression := range []string{"* * * * *", "0 1 * * *", "0 0 1 1 *"} {
		s := mustParse(b, expression, "Europe/Berlin")
		since := time.Date(2007, time.March, 1, 0, 0, 0, 0, time.UTC)
		until := since.AddDate(20, 0, 0)
		b.Run(expression, func(b *testing.B) {
			for b.Loop() {
				s.Latest(since, until)
				s.Count(since, until, 1e9)
			}
		})
	}
}
