package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/retention"
	"github.com/varvebackup/varve/test/gen"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func newSchedule(cronText string, annotations map[string]string) *harvesterv1.ScheduleVMBackup {
	o := gen.Schedule(gen.Meta("shop", "nightly"), "web")
	o.UID, o.Annotations, o.Spec.Cron, o.Spec.Retain = "uid", annotations, cronText, 3
	return o
}

func TestReadTimes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cron        string
		annotations map[string]string
		wrong       string
	}{
		"nightly":      {"0 1 * * *", nil, ""},
		"no cron":      {"61 * * * *", nil, "spec.cron: "},
		"close":        {"0,30 1 * * *", nil, "is due 30m0s apart, and backups need 1h0m0s or more"},
		"close, asked": {"* * * * *", map[string]string{harvesterv1.AnnotationSkipCronCheck: "enable"}, ""},
		"zone":         {"0 1 * * *", map[string]string{harvesterv1.AnnotationTimeZone: "Mars/Base"}, "Mars/Base"},
		"jitter":       {"0 1 * * *", map[string]string{harvesterv1.AnnotationJitter: "30m"}, ""},
		"much jitter":  {"0 * * * *", map[string]string{harvesterv1.AnnotationJitter: "61m"}, "no longer than the 1h0m0s"},
		"no jitter":    {"0 * * * *", map[string]string{harvesterv1.AnnotationJitter: "soon"}, `is "soon": it must be`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ReadTimes(newSchedule(c.cron, c.annotations))
			if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%v, want %q", err, c.wrong)
			}
		})
	}
}

// A hundred schedules of one time begin at many times, each at the same one every night.
func TestTimes_spread(t *testing.T) {
	t.Parallel()
	seen := map[time.Duration]bool{}
	for i := range 100 {
		o := newSchedule("0 1 * * *", map[string]string{harvesterv1.AnnotationJitter: "30m"})
		o.UID = types.UID(fmt.Sprint("uid-", i))
		times, err := ReadTimes(o)
		if err != nil {
			t.Fatal(err)
		}
		begin := times.Begin(noon)
		if wait := begin.Sub(times.Next(noon)); wait < 0 || wait >= 30*time.Minute {
			t.Errorf("it begins %s after it is due", wait)
		}
		if next := times.Begin(begin); next.Sub(begin) != 24*time.Hour {
			t.Errorf("it begins at %s, and then at %s", begin, next)
		}
		seen[times.Delay] = true
	}
	if len(seen) < 50 {
		t.Errorf("100 schedules begin at %d times", len(seen))
	}
}

func TestReadPolicy(t *testing.T) {
	t.Parallel()
	p, err := ReadPolicy(newSchedule("0 1 * * *", map[string]string{
		harvesterv1.AnnotationKeepHourly: "1", harvesterv1.AnnotationKeepDaily: "2",
		harvesterv1.AnnotationKeepWeekly: "3", harvesterv1.AnnotationKeepMonthly: "4",
		harvesterv1.AnnotationKeepYearly: "5", harvesterv1.AnnotationKeepWithin: "1m10d",
	}), time.UTC)
	want := retention.Policy{
		Last: 3, Hourly: 1, Daily: 2, Weekly: 3, Monthly: 4, Yearly: 5,
		Within: retention.Span{Months: 1, Days: 10}, Location: time.UTC,
	}
	if err != nil || p != want {
		t.Errorf("%+v, want %+v (%v)", p, want, err)
	}
	for key, value := range map[string]string{
		harvesterv1.AnnotationKeepHourly: "-1", harvesterv1.AnnotationKeepDaily: "", harvesterv1.AnnotationKeepWeekly: "x",
		harvesterv1.AnnotationKeepMonthly: "1001", harvesterv1.AnnotationKeepWithin: "ever",
	} {
		_, err := ReadPolicy(newSchedule("0 1 * * *", map[string]string{key: value}), time.UTC)
		if err == nil || !strings.Contains(err.Error(), "the annotation "+key) {
			t.Errorf("%s: %q: %v", key, value, err)
		}
	}
}

func TestIsScheduled(t *testing.T) {
	t.Parallel()
	o := newSchedule("0 1 * * *", nil)
	b := &harvesterv1.VirtualMachineBackup{ObjectMeta: gen.Meta("shop", BackupName(o, noon))}
	b.CreationTimestamp = metav1.NewTime(noon.Add(time.Hour))
	if !IsScheduled(b) || !DueTime(b).Equal(noon) {
		t.Errorf("the backup %s of %s is not one of a schedule", b.Name, DueTime(b))
	}
	for _, name := range []string{"copy-of-" + b.Name, b.Name + "-copy", "svmbackup-20261130.1200", "svmbackup-uid-20261330.1200"} {
		b.Name = name
		if IsScheduled(b) || !DueTime(b).Equal(noon.Add(time.Hour)) {
			t.Errorf("%s of %s is one of a schedule", name, DueTime(b))
		}
	}
}

// goes returns the backups that go.
func goes(t *testing.T, retain int, backups []*harvesterv1.VirtualMachineBackup) []*harvesterv1.VirtualMachineBackup {
	t.Helper()
	decisions, err := Decide(retention.Policy{Last: retain}, noon, backups)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range decisions {
		if d.Keep != (len(d.Reasons) > 0) {
			t.Errorf("backup %s: kept %v, with the reasons %v", d.Backup.Name, d.Keep, d.Reasons)
		}
	}
	return Old(decisions)
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		have   string
		retain int
		want   string
	}{
		"few":                               {"ggg", 3, ""},
		"the oldest":                        {"ggggg", 3, "01"},
		"one that runs is not counted":      {"gggr", 3, ""},
		"failed ones go first":              {"gfgfg", 3, "13"},
		"failed ones alone":                 {"gfgfg", 4, "1"},
		"the latest is not counted":         {"gggf", 3, ""},
		"of failed ones the latest":         {"gggff", 3, "3"},
		"nothing but failures":              {"ffff", 2, "0"},
		"the latest good one":               {"gfff", 2, "1"},
		"what is pinned":                    {"Pgggg", 3, "1"},
		"pinned alone":                      {"PPPP", 2, ""},
		"the latest good one beside pinned": {"PPPg", 2, ""},
		"what is being deleted":             {"dgggg", 3, "1"},
		"made in one second":                {"nnnn", 3, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var backups []*harvesterv1.VirtualMachineBackup
			for i, what := range c.have {
				b := &harvesterv1.VirtualMachineBackup{ObjectMeta: gen.Meta("shop", fmt.Sprint(i))}
				b.CreationTimestamp = metav1.NewTime(noon.Add(time.Duration(i-20) * time.Hour))
				switch what {
				case 'n':
					b.CreationTimestamp = metav1.NewTime(noon)
				case 'f':
					b.Status.Error = &harvesterv1.Error{}
				case 'P':
					b.Annotations = map[string]string{harvesterv1.AnnotationPinned: "true"}
				case 'd':
					b.DeletionTimestamp = ptr.To(metav1.Now())
				}
				if strings.ContainsRune("gPdn", what) {
					b.Status.ReadyToUse = ptr.To(true)
				}
				backups = append(backups, b)
			}
			got := ""
			for _, b := range goes(t, c.retain, backups) {
				got += b.Name
			}
			if got != c.want {
				t.Errorf("%s with %d: %q go, want %q", c.have, c.retain, got, c.want)
			}
		})
	}
}
