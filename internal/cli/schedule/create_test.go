package schedule

import (
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/errclass"
)

// What the controller would not go by is wrong usage, and says what to write.
func TestRequest_refusesTimesThatTheControllerWouldNotGoBy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cron, zone string
		unchecked  bool
		says       string // empty: it can be used
	}{
		{"0 1 * * *", "", false, ""},
		{"@daily", "Europe/Berlin", false, ""},
		{"CRON_TZ=Europe/Berlin 0 1 * * *", "", false, ""},
		{"CRON_TZ=Europe/Berlin 0 1 * * *", "UTC", false, "has a time zone already"},
		{"0 25 * * *", "", false, `hour "25"`},
		{"0 1 * *", "", false, "it has 4 fields"},
		{"0 1 31 2 *", "", false, "it never comes due"},
		{"0 1 * * *", "Mars/Base", false, "Mars/Base"},
		{"*/10 * * * *", "", false, "its times are 10m apart"},
		{"*/10 * * * *", "", true, ""},
	} {
		r := request{machine: "web", cron: c.cron, zone: c.zone, skipCronCheck: c.unchecked, retain: 8, maxFailure: 4}
		err := r.check()
		if c.says == "" && err != nil {
			t.Errorf("%q in %q: %v", c.cron, c.zone, err)
		}
		if c.says != "" && (failure.Code(err) != errclass.ExitUsage || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q in %q: %v", c.cron, c.zone, err)
		}
	}
}
