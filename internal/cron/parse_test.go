package cron

import (
	"errors"
	"strings"
	"testing"
	"time"

	robfig "github.com/robfig/cron/v3"

	"github.com/varvebackup/varve/internal/errclass"
)

func mustParse(tb testing.TB, expression, zone string) *Schedule {
	tb.Helper()
	s, err := Parse(expression, zone)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestParse_refusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ expression, zone, want string }{
		{"", "", "it is empty: write five fields"},
		{"  ", "", "it is empty: write five fields"},
		{"@every 1h", "", "for every six hours write 0 */6 * * *"},
		{"@every1h", "", "has no time of day"},
		{"@reboot", "", "write five fields, or @hourly, @daily"},
		{"@Daily", "", "write five fields, or @hourly, @daily"},
		{"@daily 1", "", "write five fields, or @hourly, @daily"},
		{"0 0 1 * * *", "", "but seconds are not supported: leave the first field out (0 1 * * *)"},
		{"0 1 * *", "", "it has 4 fields: write five"},
		{"0 0 1 * * * 2027", "", "it has 7 fields: write five"},
		{"60 * * * *", "", `minute "60": use 0-59`},
		{"0 24 * * *", "", `hour "24": use 0-23`},
		{"0 0 0 * *", "", `day of the month "0": use 1-31`},
		{"0 0 32 * *", "", `day of the month "32": use 1-31`},
		{"0 0 * 13 *", "", `month "13": use 1-12 or JAN-DEC`},
		{"0 0 * foo *", "", `month "foo": use 1-12 or JAN-DEC`},
		{"0 0 * * 7", "", `day of the week "7": use 0-6 or SUN-SAT, where 0 is Sunday`},
		{"0 0 * * 5-1", "", `day of the week "5-1": use 0-6`},
		{"*/0 * * * *", "", `minute "*/0": use 0-59`},
		{"*-5 * * * *", "", `minute "*-5": write *, a number, a range`},
		{"1,,2 * * * *", "", `minute "1,,2": write *, a number, a range`},
		{", * * * *", "", `minute ",": write *, a number, a range`},
		{"+5 * * * *", "", `minute "+5": write *, a number, a range`},
		{"-5 * * * *", "", `minute "-5": write *, a number, a range`},
		{"0 0 L * *", "", `day of the month "L": use 1-31`},
		{"0 0 * * 1#2", "", `day of the week "1#2": write *, a number, a range`},
		{"0 0 30 2 *", "", "it never comes due"},
		{"0 0 31 2,4,6,9,11 *", "", "it never comes due"},
		{"0 0 31 2 ?", "", "it never comes due"},
		{"0 1 *\t* *", "", "only ASCII characters are allowed"},
		{"0 1 * * *\n", "", "only ASCII characters are allowed"},
		{"0 1 * * *\x00", "", "only ASCII characters are allowed"},
		{"0 1\u00a0* * *", "", "only ASCII characters are allowed"},
		{strings.Repeat("0,", 200) + "0 * * * *", "", "the schedule has 409 characters: at most 256 are allowed"},
		{
			"0 1 * * *", "Local",
			"depends on the machine on which the controller runs: write an IANA name such as Europe/Berlin, or UTC",
		},
		{"CRON_TZ=Local 0 1 * * *", "", "depends on the machine"},
		{"0 1 * * *", "localtime", "depends on the machine"},
		{"0 1 * * *", "Europe/Atlantis", `time zone "Europe/Atlantis" is unknown: write an IANA name`},
		{"0 1 * * *", "CEST", `time zone "CEST" is unknown: write an IANA name`},
		{"0 1 * * *", "Europe", `time zone "Europe" is unknown: write an IANA name`},
		{"0 1 * * *", "../etc/passwd", "is not the name of a time zone: write an IANA name"},
		{"0 1 * * *", "/etc/localtime", "is not the name of a time zone"},
		{"0 1 * * *", "+02:00", "is not the name of a time zone"},
		{"0 1 * * *", "Europe/Berlin\n", "is not the name of a time zone"},
		{"0 1 * * *", strings.Repeat("x", 100), "is not the name of a time zone"},
		{"TZ=Europe/Berlin", "", "TZ= needs the name of a time zone and an expression, such as TZ=Europe/Berlin " +
			"0 1 * * *"},
		{"CRON_TZ= 0 1 * * *", "", "CRON_TZ= needs the name of a time zone and an expression"},
		{"TZ=UTC TZ=UTC 0 1 * * *", "", "it has six fields"},
		{"TZ=UTC @every 1h", "", "@every has no time of day"},
	} {
		_, err := Parse(c.expression, c.zone)
		if err == nil || !errors.Is(err, errclass.Invalid) {
			t.Errorf("%q in %q: %v, want an error of class Invalid", c.expression, c.zone, err)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q in %q: %v\nwant %s", c.expression, c.zone, err, c.want)
		}
	}
}

func TestParse_accepts(t *testing.T) {
	t.Parallel()
	after := time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC) // a Friday
	for _, c := range []struct{ expression, zone, next, text string }{
		{"@hourly", "", "2027-01-01T01:00:00Z", "CRON_TZ=UTC @hourly"},
		{"@daily", "", "2027-01-02T00:00:00Z", "CRON_TZ=UTC @daily"},
		{"@midnight", "", "2027-01-02T00:00:00Z", "CRON_TZ=UTC @midnight"},
		{"@weekly", "", "2027-01-03T00:00:00Z", "CRON_TZ=UTC @weekly"},
		{"@monthly", "", "2027-02-01T00:00:00Z", "CRON_TZ=UTC @monthly"},
		{"@yearly", "", "2028-01-01T00:00:00Z", "CRON_TZ=UTC @yearly"},
		{"@annually", "", "2028-01-01T00:00:00Z", "CRON_TZ=UTC @annually"},
		{" 30  1 * * * ", "", "2027-01-01T01:30:00Z", "CRON_TZ=UTC 30  1 * * *"},
		{"30 1 ? ? ?", "", "2027-01-01T01:30:00Z", "CRON_TZ=UTC 30 1 ? ? ?"},
		{"0 0 29 2 *", "", "2028-02-29T00:00:00Z", "CRON_TZ=UTC 0 0 29 2 *"},
		{"0 0 13 * FRI", "", "2027-01-08T00:00:00Z", "CRON_TZ=UTC 0 0 13 * FRI"}, // either of them, as in Kubernetes
		{"0 0 30 2 1", "", "2027-02-01T00:00:00Z", "CRON_TZ=UTC 0 0 30 2 1"},
		{"0 0 1 jan-Mar/2 *", "", "2027-03-01T00:00:00Z", "CRON_TZ=UTC 0 0 1 jan-Mar/2 *"},
		{"0 1 * * *", "Europe/Berlin", "2027-01-02T01:00:00+01:00", "CRON_TZ=Europe/Berlin 0 1 * * *"},
		{
			"CRON_TZ=America/New_York 0 1 * * *", "Europe/Berlin",
			"2027-01-01T01:00:00-05:00", "CRON_TZ=America/New_York 0 1 * * *",
		},
		{"TZ=Asia/Kathmandu   @daily", "Local", "2027-01-02T00:00:00+05:45", "CRON_TZ=Asia/Kathmandu @daily"},
	} {
		s, err := Parse(c.expression, c.zone)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := s.Next(after).Format(time.RFC3339); got != c.next || s.String() != c.text {
			t.Errorf("%q in %q: next %s, %s; want %s, %s", c.expression, c.zone, got, s, c.next, c.text)
		}
		again := mustParse(t, s.String(), "Asia/Tokyo")
		if !again.Next(after).Equal(s.Next(after)) || again.Location().String() != s.Location().String() {
			t.Errorf("%s reads back as %s", s, again)
		}
	}
}

// The library panics on a time zone without an expression.
func TestParse_panicsOfTheLibraryAreErrors(t *testing.T) {
	t.Parallel()
	_, err := parseWithLibrary(robfig.Minute, "TZ=UTC")
	if err == nil || !strings.Contains(err.Error(), "cannot be parsed") {
		t.Errorf("error %v", err)
	}
	if _, err := parseWithLibrary(robfig.Descriptor, "@every 1h"); err == nil {
		t.Error("a schedule without times of day")
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []struct{ expression, zone string }{
		{"*/15 2 * * *", ""},
		{"0 0 29 2 *", "Europe/Berlin"},
		{"@weekly", "UTC"},
		{"@every 1h", ""},
		{"TZ=UTC", ""},
		{"CRON_TZ=Asia/Tokyo 0,30 1-5/2 ? JAN-MAR MON,FRI", ""},
		{"0 1 * * *", "../x"},
		{"99999999999999999999/1 * * * *", ""},
		{"0/9223372036854775807 * * * *", ""},
		{"*-5 , * * *", "Local"},
		{"0 0 1 * * *", "right/UTC"},
	} {
		f.Add(seed.expression, seed.zone)
	}
	now := time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, expression, zone string) {
		s, err := Parse(expression, zone)
		if err != nil {
			if !errors.Is(err, errclass.Invalid) || len(err.Error()) > 4*MaxLength+1000 {
				t.Fatalf("%q in %q: %v", expression, zone, err)
			}
			return
		}
		next := s.Next(now)
		if !next.After(now) || next.Sub(now) > 9*366*24*time.Hour {
			t.Fatalf("%s: %v after %v", s, next, now)
		}
		if newest, ok := s.Latest(now, next); !ok || !newest.Equal(next) {
			t.Fatalf("%s: Latest %v, Next %v", s, newest, next)
		}
		if n := s.Count(now, next, 2); n != 1 {
			t.Fatalf("%s: %d until its next due time", s, n)
		}
		if g := s.Granularity(); g < time.Minute || Offset(s, s) != 0 {
			t.Fatalf("%s: granularity %v, offset %v", s, g, Offset(s, s))
		}
		if again := mustParse(t, s.String(), ""); !again.Next(now).Equal(next) {
			t.Fatalf("%s reads back as %s", s, again)
		}
	})
}
