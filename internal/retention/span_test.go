package retention

import (
	"strings"
	"testing"
	"time"
)

func TestParseSpan(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Span{
		"36h":         {Hours: 36},
		"7d":          {Days: 7},
		"4w":          {Weeks: 4},
		"6m":          {Months: 6},
		"2y":          {Years: 2},
		"1y6m":        {Years: 1, Months: 6},
		"1h2d3w4m":    {Months: 4, Weeks: 3, Days: 2, Hours: 1},
		"0y007d":      {Days: 7},
		"1000000y":    {Years: 1_000_000},
		"0001000000h": {Hours: 1_000_000},
	} {
		got, err := ParseSpan(s)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for s, why := range map[string]string{
		"":                      "it is empty",
		"0d":                    "it is empty",
		"7":                     "a number has no unit",
		"1y7":                   "a number has no unit",
		"d":                     "a unit has no number",
		"-7d":                   "the units are y, m, w, d and h",
		" 7d":                   "the units are y, m, w, d and h",
		"7 d":                   "the units are y, m, w, d and h",
		"7D":                    "the units are y, m, w, d and h",
		"30s":                   "the units are y, m, w, d and h",
		"1.5d":                  "the units are y, m, w, d and h",
		"٧d":                    "the units are y, m, w, d and h",
		"1d1d":                  "the unit d is given twice",
		"30min":                 "the units are y, m, w, d and h",
		"1000001h":              "a number is greater than 1000000",
		"99999999999999999999y": "a number is greater than 1000000",
	} {
		got, err := ParseSpan(s)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
}

func TestSpan_isOfTheCalendar(t *testing.T) {
	t.Parallel()
	berlin := zone(t, "Europe/Berlin")
	for _, test := range []struct {
		span, from, want string
		location         *time.Location
	}{
		{"1m", "2026-03-31T10:00:00Z", "2026-02-28T10:00:00Z", time.UTC},
		{"1m", "2028-03-31T10:00:00Z", "2028-02-29T10:00:00Z", time.UTC},
		{"1y", "2028-02-29T10:00:00Z", "2027-02-28T10:00:00Z", time.UTC},
		{"14m", "2026-01-15T10:00:00Z", "2024-11-15T10:00:00Z", time.UTC},
		{"1m1d", "2026-03-31T10:00:00Z", "2026-02-27T10:00:00Z", time.UTC},
		{"2w1d", "2026-01-10T10:00:00Z", "2025-12-26T10:00:00Z", time.UTC},
		{"1y1m1w1d1h", "2026-12-31T10:00:00Z", "2025-11-22T09:00:00Z", time.UTC},
		// From noon to noon over the change of the clocks it is 25 hours, and 24 hours are 24 hours.
		{"1d", "2026-10-25T12:00:00+01:00", "2026-10-24T12:00:00+02:00", berlin},
		{"24h", "2026-10-25T12:00:00+01:00", "2026-10-24T13:00:00+02:00", berlin},
		// These are both half past two of that day.
		{"1h", "2026-10-25T02:30:00+02:00", "2026-10-25T01:30:00+02:00", berlin},
		{"1h", "2026-10-25T02:30:00+01:00", "2026-10-25T02:30:00+02:00", berlin},
	} {
		span, err := ParseSpan(test.span)
		if err != nil {
			t.Fatal(err)
		}
		if got := span.Before(at(t, test.from).In(test.location)); !got.Equal(at(t, test.want)) {
			t.Errorf("%s before %s: %s, want %s", test.span, test.from, got, test.want)
		}
	}
}

func FuzzParseSpan(f *testing.F) {
	for _, s := range []string{"36h", "7d", "4w", "6m", "2y", "1y6m", "0d", "1000000y1000000m1000000w1000000d1000000h", "1000001y", "30min", "-1d", "٧d", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		span, err := ParseSpan(s)
		if err != nil {
			if !span.Zero() {
				t.Fatalf("%+v with %v", span, err)
			}
			return
		}
		if again, err := ParseSpan(span.String()); err != nil || again != span {
			t.Fatalf("%q is %+v, and %q is %+v, %v", s, span, span.String(), again, err)
		}
		if err := (Policy{Within: span}).Validate(); err != nil {
			t.Fatal(err)
		}
		now := time.Date(2026, 3, 31, 12, 0, 0, 0, time.UTC)
		if before := span.Before(now); !before.Before(now) {
			t.Fatalf("%s before %s is %s", span, now, before)
		}
	})
}
