package cron

import (
	"testing"
	"time"
)

func TestGranularity(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, c := range []struct {
		expression string
		want       time.Duration
	}{
		{"0,30 1 * * *", 30 * time.Minute},
		{"* * * * *", time.Minute},
		{"@hourly", time.Hour},
		{"@daily", day},
		{"@weekly", 7 * day},
		{"@monthly", 28 * day},
		{"@yearly", 365 * day},
		{"0 0 29 2 *", 4*365*day + day},
		{"0 0 31 * *", 31 * day},
		{"0 0 30 * *", 30 * day},
		{"0 0 1,31 * *", day},
		{"0 0 29 2,3 *", 29 * day},
		{"59 23 28 2 *", 365 * day},
		{"0 0 28 2 *", 365 * day},
		{"0 0 28,29 2 *", day},
		{"0 0 31 12 *", 365 * day},
		{"0 0 1 1,12 *", 31 * day},
		{"0 0,23 * * *", time.Hour},
		{"0 1,20 * * *", 5 * time.Hour},
		{"0 1,20 * * 1", 19 * time.Hour},
		{"0 0 * * 0,6", day},
		{"0 0 1 * 1", day}, // the first of the month can be a Tuesday
		{"50 23 1 * 1", day},
	} {
		for _, zone := range []string{"UTC", "Europe/Berlin"} {
			if got := mustParse(t, c.expression, zone).Granularity(); got != c.want {
				t.Errorf("%s in %s: %v, want %v", c.expression, zone, got, c.want)
			}
		}
	}
}

func TestOffset(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, c := range []struct {
		a, b string
		want time.Duration
	}{
		{"0 * * * *", "3 * * * *", 3 * time.Minute},
		{"0 * * * *", "58 * * * *", 2 * time.Minute},
		{"0 * * * *", "0 */2 * * *", 0},
		{"0 * * * *", "5 */2 * * *", 5 * time.Minute}, // schedules of another granularity meet as well
		{"0 1 * * *", "0 1 * * *", 0},
		{"0 1 * * 1", "0 1 * * 2", day},
		{"0 1 * * 1", "0 1 * * 5", 3 * day},
		{"0 1 * * 0", "0 1 * * 6", day},
		{"30 23 * * 6", "15 0 * * 0", 45 * time.Minute},
		{"0 1 * * 1", "0 1 1 * *", 0},
		{"59 23 * * *", "0 0 * * *", time.Minute},
		{"50 23 28 2 *", "0 0 1 3 *", 10 * time.Minute},
		{"50 23 29 2 *", "0 0 1 3 *", 10 * time.Minute},
		{"0 0 29 2 *", "0 0 28 2 *", day},
		{"0 0 29 2 *", "0 0 27 2 *", 2 * day},
		{"55 23 31 12 *", "5 0 1 1 *", 10 * time.Minute},
		{"0 0 31 1 *", "0 0 1 3 *", 29 * day},
		{"0 0 30 * *", "0 0 1 * *", day},
		{"0 0 31 * *", "0 0 2 * *", 2 * day},
		{"0 0 1 1 *", "0 0 2 7 *", 182 * day},
		{"CRON_TZ=UTC 0 1 * * *", "CRON_TZ=Asia/Kathmandu 45 6 * * *", 0},
		{"CRON_TZ=UTC 0 1 * * *", "CRON_TZ=Europe/Berlin 0 3 * * *", 0},
		{"CRON_TZ=UTC 0 1 * * *", "CRON_TZ=Europe/Berlin 0 2 * * *", 0},
		{"CRON_TZ=UTC 0 1 * * *", "CRON_TZ=Europe/Berlin 30 2 * * *", 30 * time.Minute},
		{"CRON_TZ=UTC 0 1 * * *", "CRON_TZ=Europe/Berlin 0 4 * * *", time.Hour},
		// Between the changes in America and in Europe, New York is five hours behind instead of six.
		{"CRON_TZ=Europe/Berlin 0 12 * * *", "CRON_TZ=America/New_York 0 7 * * *", 0},
		{"CRON_TZ=Europe/Berlin 0 12 * * *", "CRON_TZ=America/New_York 0 6 * * *", 0},
		{"CRON_TZ=Europe/Berlin 0 12 * * *", "CRON_TZ=America/New_York 0 5 * * *", time.Hour},
		{"CRON_TZ=Pacific/Kiritimati 0 1 * * 2", "CRON_TZ=Pacific/Pago_Pago 0 0 * * 1", 0},
		{"CRON_TZ=Pacific/Kiritimati 30 1 * * 2", "CRON_TZ=Pacific/Pago_Pago 0 0 * * 1", 30 * time.Minute},
		{"CRON_TZ=Asia/Tokyo 0 0 1 1 *", "CRON_TZ=UTC 0 15 31 12 *", 0},
	} {
		a, b := mustParse(t, c.a, ""), mustParse(t, c.b, "")
		if got, back := Offset(a, b), Offset(b, a); got != c.want || back != c.want {
			t.Errorf("%s and %s: %v, and %v the other way round, want %v", c.a, c.b, got, back, c.want)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		mustParse(b, "30 1 * * 1", "UTC")
	}
}

func BenchmarkOffset(b *testing.B) {
	for _, c := range []struct{ name, a, b string }{
		{"daily", "0 1 * * *", "30 1 * * *"},
		{"weekly", "0 1 * * 1", "0 1 * * 4"},
		{"hourly", "0 * * * *", "30 * * * *"},
		{"minutely", "* * * * *", "30 3 1 * *"},
		{"zones", "CRON_TZ=Europe/Berlin 0 */4 * * *", "CRON_TZ=America/New_York 30 1 * * *"},
		{"zones, weekdays", "CRON_TZ=Europe/Berlin 0 1 * * 1-6", "CRON_TZ=America/New_York 30 1 * * 1-6"},
	} {
		first, second := mustParse(b, c.a, ""), mustParse(b, c.b, "")
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				Offset(first, second)
			}
		})
	}
}
