package schedule

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/output"
)

// A description has what annotations ask for, and says nothing of what none does.
func TestWriteSchedule_saysWhatAnnotationsAskFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		annotations map[string]string
		want        []string
	}{
		"none": {nil, nil},
		"jitter": {
			map[string]string{harvesterv1.AnnotationJitter: "90m"},
			[]string{"Jitter: 90m, its runs begin 63m after they are due"},
		},
		"a jitter that cannot be read": {map[string]string{harvesterv1.AnnotationJitter: "soon"}, []string{"Jitter: soon"}},
		"keeps": {
			map[string]string{
				harvesterv1.AnnotationKeepDaily: "7", harvesterv1.AnnotationKeepWithin: "30d",
				harvesterv1.AnnotationKeepHourly: "24", harvesterv1.AnnotationKeepYearly: "0",
			},
			[]string{"Also keeps: 24 hourly, 7 daily, all within 30d"},
		},
		"adopts":         {map[string]string{harvesterv1.AnnotationAdopt: "true"}, []string{"Adopts: yes"}},
		"does not adopt": {map[string]string{harvesterv1.AnnotationAdopt: "false"}, nil},
		"was asked for a run": {
			map[string]string{harvesterv1.AnnotationRunAt: "2026-11-29T02:00:00Z"},
			[]string{"Requested: 2026-11-29T02:00:00Z"},
		},
		"the schedule is a copy, and newer": {
			map[string]string{harvesterv1.AnnotationRunAt: "2026-11-01T01:00:00Z"}, nil,
		},
		"the run was made": {map[string]string{harvesterv1.AnnotationRunAt: "2026-11-29T01:00:00Z"}, nil},
	} {
		s, now := testSchedule()
		s.UID, s.Annotations, s.Status.LastRequestedTime = "a", c.annotations, &metav1.Time{Time: due}
		var out strings.Builder
		writeSchedule(&output.Page{Out: &out, Now: now}, s)
		var got []string
		for line := range strings.Lines(out.String()) {
			title, value, _ := strings.Cut(line, ":")
			switch title {
			case "Jitter", "Also keeps", "Adopts", "Requested":
				got = append(got, title+": "+strings.TrimSpace(value))
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestWriteRuns(t *testing.T) {
	t.Parallel()
	at := func(hour int) metav1.Time { return metav1.NewTime(due.Add(time.Duration(hour) * time.Hour)) }
	retryTime := at(4)
	var out strings.Builder
	writeRuns(&output.Page{Out: &out}, []harvesterv1.ScheduledRun{
		{Time: at(3), Result: harvesterv1.RunRetrying, Backup: "d", Message: "m", RetryTime: &retryTime},
		{Time: at(2), Result: harvesterv1.RunFailed, Backup: "c", Message: "m", Attempts: 3},
		{Time: at(1), Result: harvesterv1.RunSucceeded, Backup: "b", Reason: harvesterv1.RunRequested},
		{Time: at(0), Result: harvesterv1.RunSkipped, Reason: harvesterv1.SkippedOverlap},
	})
	const want = `
Last runs:
  DUE                                RESULT                   BACKUP   MESSAGE
  2026-11-29T04:00:00Z               Retrying                 d        m; tried again at 2026-11-29T05:00:00Z
  2026-11-29T03:00:00Z               Failed (3 attempts)     c        m
  2026-11-29T02:00:00Z (requested)   Succeeded                b        -
  2026-11-29T01:00:00Z               Skipped                  -        the backup before it had not ended
`
	if diff := cmp.Diff(strings.Fields(want), strings.Fields(out.String())); diff != "" {
		t.Error(diff)
	}
}
