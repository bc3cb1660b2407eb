package schedule

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/errclass"
)

// scheduledBackup returns a backup of a schedule that can be restored, whose run was due some days before the newest.
func scheduledBackup(daysBefore int) harvesterv1.VirtualMachineBackup {
	at := due.AddDate(0, 0, -daysBefore)
	b := harvesterv1.VirtualMachineBackup{}
	label := at.Format(harvesterv1.ScheduledTimeLayout)
	b.Namespace, b.Name, b.UID = "app", "svmbackup-u-"+label, "b"
	b.Labels = map[string]string{harvesterv1.LabelScheduledTime: label, harvesterv1.LabelSchedule: "u"}
	b.CreationTimestamp, b.Status.ReadyToUse = metav1.NewTime(at), ptr.To(true)
	return b
}

// A dry run shows what the schedule's rules keep, or other ones, the newest first.
func TestRetention(t *testing.T) {
	t.Parallel()
	failed, runs, pinned, copied := scheduledBackup(1), scheduledBackup(0), scheduledBackup(4), scheduledBackup(9)
	failed.Status.ReadyToUse, failed.Status.Error = nil, &harvesterv1.Error{Message: ptr.To("full")}
	runs.Status.ReadyToUse = nil
	pinned.Annotations = map[string]string{harvesterv1.AnnotationPinned: "true"}
	copied.Name = "copy"
	backups := []harvesterv1.VirtualMachineBackup{
		runs, failed, scheduledBackup(2), scheduledBackup(3), pinned, scheduledBackup(5), copied,
	}
	for name, c := range map[string]struct {
		flags []string
		want  []string
		taken bool // the backups are those of a schedule that was deleted
	}{
		"taken over": {
			[]string{"--retain=2", "--keep-daily=0"}, []string{
				"2026-11-29T01:00:00Z Pending kept it has not ended",
				"2026-11-28T01:00:00Z Failed kept failed last",
				"2026-11-27T01:00:00Z Ready kept last good one, last 2",
				"2026-11-26T01:00:00Z Ready kept last 2",
				"2026-11-25T01:00:00Z Ready kept pinned",
				"2026-11-24T01:00:00Z Ready kept taken over, and the schedule has no good backup of its own yet",
				"schedule s retains 2: 6 kept, 0 to go",
			}, true,
		},
		"as the schedule says": {
			nil, []string{
				"2026-11-29T01:00:00Z Pending kept it has not ended",
				"2026-11-28T01:00:00Z Failed kept failed last",
				"2026-11-27T01:00:00Z Ready kept last good one, last 2, daily 2026-11-27",
				"2026-11-26T01:00:00Z Ready kept last 2",
				"2026-11-25T01:00:00Z Ready kept pinned",
				"2026-11-24T01:00:00Z Ready goes no rule keeps it",
				"schedule s retains 2 and also keeps 1 daily: 5 kept, 1 to go",
			}, false,
		},
		"with other rules": {
			[]string{"--retain=3", "--keep-daily=0", "--keep-within=2d"}, []string{
				"2026-11-29T01:00:00Z Pending kept it has not ended",
				"2026-11-28T01:00:00Z Failed kept failed last",
				"2026-11-27T01:00:00Z Ready kept last good one, last 3, within 2d",
				"2026-11-26T01:00:00Z Ready kept last 3, within 2d",
				"2026-11-25T01:00:00Z Ready kept pinned",
				"2026-11-24T01:00:00Z Ready kept last 3",
				"schedule s retains 3 and also keeps all within 2d: 6 kept, 0 to go",
			}, false,
		},
	} {
		s, now := testSchedule()
		if s.UID = "u"; c.taken {
			s.UID = "made-again"
		}
		s.Name, s.Spec.Retain, s.Annotations = "s", 2, map[string]string{harvesterv1.AnnotationKeepDaily: "1"}
		var rules ruleFlags
		cmd := &cobra.Command{}
		rules.addFlags(cmd)
		if err := cmd.ParseFlags(c.flags); err != nil {
			t.Fatal(err)
		}
		if err := rules.check(cmd.Flags()); err != nil {
			t.Fatal(err)
		}
		rules.applyTo(s)
		r, err := decideRetention(s, backups, now)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := writeRetention(&output.Page{Out: &out, Now: now}, r, false); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		got = slices.DeleteFunc(got, func(s string) bool { return s == "" })
		if diff := cmp.Diff(append([]string{"DUE STATE DECISION WHY"}, c.want...), got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestRetention_refusals(t *testing.T) {
	t.Parallel()
	s, now := testSchedule()
	s.Name, s.Annotations = "s", map[string]string{harvesterv1.AnnotationKeepDaily: "x"}
	if _, err := decideRetention(s, nil, now); failure.Code(err) != errclass.ExitFailure ||
		!strings.Contains(err.Error(), "the retention of schedule s: the annotation varvebackup.io/keep-daily") {
		t.Errorf("a rule that cannot be read: %v", err)
	}
	s.Spec.Cron = "0 25 * * *"
	if _, err := decideRetention(s, nil, now); failure.Code(err) != errclass.ExitFailure ||
		!strings.Contains(err.Error(), "the retention of schedule s: spec.cron") {
		t.Errorf("times that cannot be read: %v", err)
	}
	for flag, says := range map[string]string{
		"--retain=0": "it must be from 2 to 250", "--retain=1": "from 2", "--retain=251": "to 250",
		"--keep-daily=x": `--keep-daily is "x"`, "--keep-within=3": "--keep-within: ",
	} {
		err := executeOffline(newRetentionCommand, "s", flag)
		if failure.Code(err) != errclass.ExitUsage || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
