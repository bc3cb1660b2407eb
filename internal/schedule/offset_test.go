package schedule

import (
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// scheduleAt returns a schedule of the namespace "app", whose name is its expression.
func scheduleAt(cron string, changes ...func(*harvesterv1.ScheduleVMBackup)) *harvesterv1.ScheduleVMBackup {
	o := &harvesterv1.ScheduleVMBackup{ObjectMeta: metav1.ObjectMeta{
		Namespace: "app", Name: cron, Annotations: map[string]string{},
	}}
	o.Spec.Cron = cron
	for _, change := range changes {
		change(o)
	}
	return o
}

func annotate(key, value string) func(*harvesterv1.ScheduleVMBackup) {
	return func(o *harvesterv1.ScheduleVMBackup) { o.Annotations[key] = value }
}

// refuse returns what the check of a schedule says about others, or "".
func refuse(t *testing.T, o *harvesterv1.ScheduleVMBackup, others ...*harvesterv1.ScheduleVMBackup) string {
	t.Helper()
	times, err := ReadTimes(o)
	if err != nil {
		t.Fatal(err)
	}
	c := NewOffsetCheck(o, times)
	for _, other := range others {
		c.Add(other)
	}
	if err := c.Err(); err != nil {
		return err.Error()
	}
	return ""
}

// near returns the message about a schedule that is due near another one.
func near(cron, how, advice string) string {
	return `spec.cron: "` + cron + `" is due ` + how + `, and schedules that are due equally often must be 10m0s ` +
		`apart: ` + advice + `, or set the annotation harvesterhci.io/svmbackupSkipCronCheck to "enable"`
}

func TestOffsetCheck(t *testing.T) {
	t.Parallel()
	inTokyo := annotate(harvesterv1.AnnotationTimeZone, "Asia/Tokyo")
	elsewhere := func(o *harvesterv1.ScheduleVMBackup) { o.Namespace = "other" }
	type others = []*harvesterv1.ScheduleVMBackup
	for name, c := range map[string]struct {
		schedule *harvesterv1.ScheduleVMBackup
		others   others
		want     string
	}{
		"alone": {scheduleAt("0 1 * * *"), nil, ""},
		"3 minutes of an hour": {
			scheduleAt("3 * * * *"),
			others{scheduleAt("0 * * * *")},
			near("3 * * * *", "within 3m0s of ScheduleVMBackup 0 * * * *", `use "10 * * * *", which is free`),
		},
		"2 minutes across an hour": {
			scheduleAt("58 * * * *"),
			others{scheduleAt("0 * * * *")},
			near("58 * * * *", "within 2m0s of ScheduleVMBackup 0 * * * *", `use "50 * * * *", which is free`),
		},
		"10 minutes": {scheduleAt("10 1 * * *"), others{scheduleAt("0 1 * * *")}, ""},
		"9 minutes before": {
			scheduleAt("51 0 * * *"),
			others{scheduleAt("0 1 * * *")},
			near("51 0 * * *", "within 9m0s of ScheduleVMBackup 0 1 * * *", `use "50 0 * * *", which is free`),
		},
		"the same time": {
			scheduleAt("@daily"),
			others{scheduleAt("0 0 * * *")},
			near("@daily", "at the same time as ScheduleVMBackup 0 0 * * *", `use "10 0 * * *", which is free`),
		},
		"another granularity": {scheduleAt("0 * * * *"), others{scheduleAt("0 */2 * * *")}, ""},
		"another day":         {scheduleAt("0 1 * * 1"), others{scheduleAt("0 1 * * 2")}, ""},
		"days that meet once in years": {
			scheduleAt("0 0 29 2 *"),
			others{scheduleAt("1 0 29 2 *")},
			near("0 0 29 2 *", "within 1m0s of ScheduleVMBackup 1 0 29 2 *", `use "11 0 29 2 *", which is free`),
		},
		"the next free minute": {
			scheduleAt("0 1 * * *"),
			others{scheduleAt("55 0 * * *"), scheduleAt("5 1 * * *"), scheduleAt("20 1 * * *"), scheduleAt("41 1 * * *")},
			near("0 1 * * *", "within 5m0s of ScheduleVMBackup 55 0 * * *", `use "30 1 * * *", which is free`),
		},
		"no free minute": {
			scheduleAt("5 * * * *"),
			others{
				scheduleAt("0 * * * *"), scheduleAt("15 * * * *"), scheduleAt("30 * * * *"), scheduleAt("45 * * * *"),
			},
			near("5 * * * *", "within 5m0s of ScheduleVMBackup 0 * * * *", "choose a time that is 10m0s or more away"),
		},
		"the nearest": {
			scheduleAt("0 1 * * *"),
			others{scheduleAt("8 1 * * *"), scheduleAt("57 0 * * *"), scheduleAt("5 1 * * *")},
			near("0 1 * * *", "within 3m0s of ScheduleVMBackup 57 0 * * *", `use "18 1 * * *", which is free`),
		},
		"another namespace": {
			scheduleAt("0 1 * * *"),
			others{scheduleAt("1 1 * * *", elsewhere)},
			near("0 1 * * *", "within 1m0s of a schedule in another namespace", `use "11 1 * * *", which is free`),
		},
		"as near in this namespace": {
			scheduleAt("2 1 * * *"),
			others{scheduleAt("1 1 * * *", elsewhere), scheduleAt("3 1 * * *")},
			near("2 1 * * *", "within 1m0s of ScheduleVMBackup 3 1 * * *", `use "13 1 * * *", which is free`),
		},
		"another namespace, the same name": {
			scheduleAt("0 1 * * *"),
			others{scheduleAt("0 1 * * *", elsewhere)},
			near("0 1 * * *", "at the same time as a schedule in another namespace", `use "10 1 * * *", which is free`),
		},
		"zones that meet": {
			scheduleAt("0 1 * * *"),
			others{scheduleAt("5 10 * * *", inTokyo)},
			near("0 1 * * *", "within 5m0s of ScheduleVMBackup 5 10 * * *", `use "15 1 * * *", which is free`),
		},
		"zones that meet in summer": {
			scheduleAt("CRON_TZ=Europe/Berlin 0 3 * * *"),
			others{scheduleAt("0 1 * * *")},
			near("CRON_TZ=Europe/Berlin 0 3 * * *", "at the same time as ScheduleVMBackup 0 1 * * *",
				`use "CRON_TZ=Europe/Berlin 10 3 * * *", which is free`),
		},
		"zones that do not meet": {scheduleAt("0 1 * * *"), others{scheduleAt("0 1 * * *", inTokyo)}, ""},
		"itself":                 {scheduleAt("0 1 * * *"), others{scheduleAt("0 1 * * *")}, ""},
		"those that do not count": {
			scheduleAt("0 1 * * *"), others{
				scheduleAt("1 1 * * *", annotate(harvesterv1.AnnotationSkipCronCheck, "enable")),
				scheduleAt("2 1 * * *", func(o *harvesterv1.ScheduleVMBackup) { o.DeletionTimestamp = &metav1.Time{} }),
				scheduleAt("3 1 * * tomorrow"),
			}, "",
		},
		"one that is suspended": {
			scheduleAt("0 1 * * *"),
			others{scheduleAt("1 1 * * *", func(o *harvesterv1.ScheduleVMBackup) { o.Spec.Suspend = true })},
			near("0 1 * * *", "within 1m0s of ScheduleVMBackup 1 1 * * *", `use "11 1 * * *", which is free`),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := refuse(t, c.schedule, c.others...); got != c.want {
				t.Errorf("%s\nwant\n%s", got, c.want)
			}
		})
	}
}

var advised = regexp.MustCompile(`use "(.*)", which is free`)

// Whoever follows the advice is accepted, until the hour is full.
func TestOffsetCheck_adviceIsAccepted(t *testing.T) {
	t.Parallel()
	all := []*harvesterv1.ScheduleVMBackup{scheduleAt("27 1 * * *")}
	for len(all) < 60 {
		m := advised.FindStringSubmatch(refuse(t, scheduleAt("30 1 * * *"), all...))
		if m == nil {
			break
		}
		next := scheduleAt(m[1])
		if refusal := refuse(t, next, all...); refusal != "" {
			t.Fatalf("%s was advised: %s", m[1], refusal)
		}
		all = append(all, next)
	}
	if len(all) != 6 {
		t.Errorf("%d schedules within an hour, want 6", len(all))
	}
}
