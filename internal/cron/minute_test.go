package cron

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A schedule at another minute is the one that the other expression gives.
func TestAtMinute(t *testing.T) {
	t.Parallel()
	sameZone := cmp.Comparer(func(a, b *time.Location) bool { return a.String() == b.String() })
	for _, c := range []struct{ expression, want string }{
		{"5 1 * * *", "40 1 * * *"},
		{"@daily", "40 0 * * *"},
		{"@weekly", "40 0 * * 0"},
		{"CRON_TZ=Europe/Berlin 0 */6 1 * 1-5", "CRON_TZ=Europe/Berlin 40 */6 1 * 1-5"},
		{"*/59 3 * * *", ""},
		{"0,30 1 * * *", ""},
	} {
		got := mustParse(t, c.expression, "").AtMinute(40)
		if c.want == "" {
			if got != nil {
				t.Errorf("%s: %s", c.expression, got)
			}
			continue
		}
		if got == nil {
			t.Errorf("%s: none", c.expression)
			continue
		}
		want := mustParse(t, c.want, "")
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Schedule{}), sameZone); diff != "" {
			t.Errorf("%s: %s", c.expression, diff)
		}
		if got.Minute() != 40 {
			t.Errorf("%s: minute %d", c.expression, got.Minute())
		}
	}
}
