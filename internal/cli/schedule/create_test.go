package schedule

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/cli/session"
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
		{"*/10 * * * *", "", false, "or more: change it, or allow it with --skip-cron-check"},
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

// What a schedule cannot keep, and a jitter that is longer than its times are apart, is wrong usage of the flag.
func TestRequest_refusesRulesThatTheControllerWouldNotGoBy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags []string
		says  string // empty: they can be used
	}{
		{nil, ""},
		{[]string{"--jitter=24h", "--keep-daily=1000", "--keep-within=1y6m", "--keep-hourly=0"}, ""},
		{[]string{"--jitter=soon"}, `--jitter is "soon": it must be a duration such as 30m`},
		{[]string{"--jitter=-1m"}, `--jitter is "-1m"`},
		{[]string{"--jitter=25h"}, "no longer than the 24h0m0s that two runs are apart"},
		{[]string{"--keep-hourly=x"}, `--keep-hourly is "x": it must be a number from 0 to 1000`},
		{[]string{"--keep-daily=-1"}, `--keep-daily is "-1"`},
		{[]string{"--keep-weekly=1001"}, `--keep-weekly is "1001"`},
		{[]string{"--keep-monthly=1.5"}, `--keep-monthly is "1.5"`},
		{[]string{"--keep-yearly=1y"}, `--keep-yearly is "1y"`},
		{[]string{"--keep-within=30"}, `--keep-within: "30" is not a span of time`},
	} {
		err := executeOffline(newCreateCommand, append([]string{"nightly", "--vm=web", "--cron=0 1 * * *"}, c.flags...)...)
		if c.says == "" && (err == nil || !strings.Contains(err.Error(), "kubeconfig")) { // the next step fails
			t.Errorf("%v: %v", c.flags, err)
		}
		if c.says != "" && (failure.Code(err) != errclass.ExitUsage || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v: %v", c.flags, err)
		}
	}
}

func offlineSession() *resource.Session {
	return resource.NewSession(&session.Session{Streams: session.Streams{Err: io.Discard}, Now: time.Now})
}

// executeOffline runs a command that has no cluster.
func executeOffline(newCommand func(*resource.Session) *cobra.Command, args ...string) error {
	s := offlineSession()
	c := newCommand(s)
	s.AddClusterFlags(c)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetOut(io.Discard)
	c.SetArgs(append(args, "--kubeconfig=none"))
	return c.Execute()
}

// Each flag of a schedule is in the object.
func TestRequest_newObject(t *testing.T) {
	t.Parallel()
	r := request{
		machine: "web", cron: " 0 1 * * * ", zone: "Europe/Berlin", jitter: "30m", retain: 8, maxFailure: 4, adopt: true,
		keeps: keepFlags{harvesterv1.AnnotationKeepDaily: "14", harvesterv1.AnnotationKeepWithin: ""},
	}
	want := map[string]string{
		"varvebackup.io/time-zone": "Europe/Berlin", "varvebackup.io/jitter": "30m",
		"varvebackup.io/keep-daily": "14", "varvebackup.io/adopt-backups": "true",
	}
	got := r.newObject("app", "nightly")
	if diff := cmp.Diff(want, got.Annotations); diff != "" || got.Spec.Cron != "0 1 * * *" {
		t.Errorf("%q %s", got.Spec.Cron, diff)
	}
}
