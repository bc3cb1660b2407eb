package backuppolicy

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	"github.com/varvebackup/varve/internal/schedule"
)

// newPolicy returns a policy for machines with the label tier=gold.
func newPolicy(edit ...func(*varvev1.BackupPolicy)) *varvev1.BackupPolicy {
	p := &varvev1.BackupPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "gold", UID: "policy", Generation: 3},
		Status:     varvev1.BackupPolicyStatus{ObservedGeneration: 3},
		Spec: varvev1.BackupPolicySpec{
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}},
			Template: varvev1.ScheduleTemplate{
				Annotations: map[string]string{harvesterv1.AnnotationLocation: "shelf"},
				Spec: varvev1.ScheduleTemplateSpec{
					Cron: "0 1 * * *", Retain: 8, MaxFailure: 4, Type: string(harvesterv1.Backup),
				},
			},
		},
	}
	for _, f := range edit {
		f(p)
	}
	return p
}

func newMachine(name string, labels map[string]string) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name, Labels: labels}}
}

var gold = map[string]string{"tier": "gold"}

// scheduleOf returns the schedule that newPolicy makes for a machine.
func scheduleOf(
	t *testing.T, machine string, edit ...func(*harvesterv1.ScheduleVMBackup),
) *harvesterv1.ScheduleVMBackup {
	t.Helper()
	from, err := readTemplate(newPolicy())
	if err != nil {
		t.Fatal(err)
	}
	o := from.newSchedule(machine)
	for _, f := range edit {
		f(o)
	}
	return o
}

// names are what a decision does with which schedules.
type names struct {
	Create, Update, Remove, Failed []string
	Scheduled                      int
	Reason                         string
}

func namesOf(d *decision) names {
	n := names{Scheduled: d.scheduled, Reason: d.reason}
	for _, o := range d.create {
		n.Create = append(n.Create, o.Name)
	}
	for _, u := range d.update {
		n.Update = append(n.Update, u.want.Name)
	}
	for _, o := range d.remove {
		n.Remove = append(n.Remove, o.Name)
	}
	for _, f := range d.failed {
		n.Failed = append(n.Failed, f.Name+" "+f.Reason)
	}
	return n
}

func TestDecide(t *testing.T) {
	t.Parallel()
	deleted := newMachine("web", gold)
	deleted.DeletionTimestamp = &metav1.Time{}
	for name, c := range map[string]struct {
		policy    func(*varvev1.BackupPolicy)
		machines  []metav1.PartialObjectMetadata
		schedules []*harvesterv1.ScheduleVMBackup
		others    []string
		want      names
	}{
		"machines with the label": {
			machines: []metav1.PartialObjectMetadata{newMachine("web", gold), newMachine("db", gold), newMachine("ci", nil)},
			want:     names{Create: []string{"gold-db", "gold-web"}},
		},
		"no selector: all machines": {
			policy:   func(p *varvev1.BackupPolicy) { p.Spec.Selector = metav1.LabelSelector{} },
			machines: []metav1.PartialObjectMetadata{newMachine("web", gold), newMachine("ci", nil)},
			want:     names{Create: []string{"gold-ci", "gold-web"}},
		},
		"nothing to do": {
			machines:  []metav1.PartialObjectMetadata{newMachine("web", gold)},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Scheduled: 1},
		},
		"the label is gone": {
			machines:  []metav1.PartialObjectMetadata{newMachine("web", nil)},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Remove: []string{"gold-web"}},
		},
		"a selector that is changed to nothing": {
			policy:    func(p *varvev1.BackupPolicy) { p.Spec.Selector.MatchLabels["tier"], p.Generation = "golden", 4 },
			machines:  []metav1.PartialObjectMetadata{newMachine("web", gold)},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Scheduled: 1, Reason: varvev1.ReasonSelectsNothing},
		},
		"a selector that still selects nothing": {
			policy: func(p *varvev1.BackupPolicy) {
				p.Spec.Selector.MatchLabels["tier"] = "golden"
				p.Status.Conditions = []metav1.Condition{{Type: "Ready", Reason: varvev1.ReasonSelectsNothing}}
			},
			machines:  []metav1.PartialObjectMetadata{newMachine("web", gold)},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Scheduled: 1, Reason: varvev1.ReasonSelectsNothing},
		},
		"a selector that is changed to other machines": {
			policy:    func(p *varvev1.BackupPolicy) { p.Spec.Selector.MatchLabels["tier"], p.Generation = "silver", 4 },
			machines:  []metav1.PartialObjectMetadata{newMachine("web", gold), newMachine("db", map[string]string{"tier": "silver"})},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Create: []string{"gold-db"}, Remove: []string{"gold-web"}},
		},
		"the machine is gone": {
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Remove: []string{"gold-web"}},
		},
		"the machine is being deleted": {
			machines:  []metav1.PartialObjectMetadata{deleted},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Remove: []string{"gold-web"}},
		},
		"the schedule is being deleted": {
			machines: []metav1.PartialObjectMetadata{newMachine("web", gold)},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web", func(o *harvesterv1.ScheduleVMBackup) {
				o.DeletionTimestamp = &metav1.Time{}
			})},
		},
		"the name is taken": {
			machines: []metav1.PartialObjectMetadata{newMachine("web", gold), newMachine("db", gold)},
			others:   []string{"gold-web"},
			want:     names{Create: []string{"gold-db"}, Failed: []string{"web NameTaken"}},
		},
		"a copy of a schedule under another name": {
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web", func(o *harvesterv1.ScheduleVMBackup) {
				o.Name = "copy"
			})},
		},
		"a copy of a schedule under a machine's name": {
			machines: []metav1.PartialObjectMetadata{newMachine("db", gold)},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web", func(o *harvesterv1.ScheduleVMBackup) {
				o.Name = "gold-db"
			})},
			want: names{Failed: []string{"db NameTaken"}},
		},
		"a schedule without the label": {
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web", func(o *harvesterv1.ScheduleVMBackup) {
				o.Labels = nil
			})},
		},
		"another cron": {
			policy:    func(p *varvev1.BackupPolicy) { p.Spec.Template.Spec.Cron = "0 2 * * *" },
			machines:  []metav1.PartialObjectMetadata{newMachine("web", gold)},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Update: []string{"gold-web"}, Scheduled: 1},
		},
		"another type": {
			policy:    func(p *varvev1.BackupPolicy) { p.Spec.Template.Spec.Type = string(harvesterv1.Snapshot) },
			machines:  []metav1.PartialObjectMetadata{newMachine("web", gold)},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Remove: []string{"gold-web"}},
		},
		"a selector that cannot be read": {
			policy: func(p *varvev1.BackupPolicy) {
				p.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "Like"}}
			},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Scheduled: 1, Reason: varvev1.ReasonInvalidSelector},
		},
		"a template that cannot be read": {
			policy:    func(p *varvev1.BackupPolicy) { p.Spec.Template.Spec.Cron = "*/10 * * * *" },
			machines:  []metav1.PartialObjectMetadata{newMachine("db", gold)},
			schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf(t, "web")},
			want:      names{Scheduled: 1, Reason: varvev1.ReasonInvalidTemplate},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := newPolicy()
			if c.policy != nil {
				c.policy(policy)
			}
			others := map[string]bool{}
			for _, o := range c.others {
				others[o] = true
			}
			got := decide(&input{policy: policy, machines: c.machines, schedules: c.schedules, others: others})
			if diff := cmp.Diff(c.want, namesOf(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadTemplate_annotations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cron       string
		have, want map[string]string
	}{
		"defaults": {cron: "0 1 * * *", want: map[string]string{harvesterv1.AnnotationJitter: "30m"}},
		"jitter of its own": {
			cron: "0 1 * * *",
			have: map[string]string{harvesterv1.AnnotationJitter: "0s", harvesterv1.AnnotationAdopt: "false"},
			want: map[string]string{harvesterv1.AnnotationJitter: "0s", harvesterv1.AnnotationAdopt: "false"},
		},
		"often": {
			cron: "*/10 * * * *",
			have: map[string]string{harvesterv1.AnnotationSkipCronCheck: "enable"},
			want: map[string]string{harvesterv1.AnnotationJitter: "10m"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := newPolicy(func(p *varvev1.BackupPolicy) {
				p.Spec.Template.Annotations, p.Spec.Template.Spec.Cron = c.have, c.cron
			})
			from, err := readTemplate(policy)
			if err != nil {
				t.Fatal(err)
			}
			o := from.newSchedule("web")
			want := map[string]string{
				harvesterv1.AnnotationAdopt: "true", harvesterv1.AnnotationSkipCronCheck: "enable",
				varvev1.AnnotationPolicySuspend: "false",
				varvev1.AnnotationPolicyAnnotations: "harvesterhci.io/svmbackupSkipCronCheck," +
					"varvebackup.io/adopt-backups,varvebackup.io/jitter",
			}
			maps.Copy(want, c.want)
			if diff := cmp.Diff(want, o.Annotations); diff != "" {
				t.Error(diff)
			}
			if _, err := schedule.ReadTimes(o); err != nil {
				t.Errorf("the schedule cannot be carried out: %v", err)
			}
		})
	}
}

func TestReadTemplate_refusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*varvev1.ScheduleTemplate)
		want string
	}{
		"cron":        {func(f *varvev1.ScheduleTemplate) { f.Spec.Cron = "every night" }, "spec.template: spec.cron: "},
		"granularity": {func(f *varvev1.ScheduleTemplate) { f.Spec.Cron = "*/30 * * * *" }, "is due 30m0s apart"},
		"time zone": {func(f *varvev1.ScheduleTemplate) {
			f.Annotations = map[string]string{harvesterv1.AnnotationTimeZone: "Atlantis"}
		}, "Atlantis"},
		"jitter": {func(f *varvev1.ScheduleTemplate) {
			f.Annotations = map[string]string{harvesterv1.AnnotationJitter: "25h"}
		}, "the annotation varvebackup.io/jitter is \"25h\""},
		"retention": {func(f *varvev1.ScheduleTemplate) {
			f.Annotations = map[string]string{harvesterv1.AnnotationKeepDaily: "many"}
		}, "the annotation varvebackup.io/keep-daily is \"many\""},
		"an annotation that is misspelt": {func(f *varvev1.ScheduleTemplate) {
			f.Annotations = map[string]string{"varvebackup.io/keep-daly": "30"}
		}, "a schedule knows no annotation \"varvebackup.io/keep-daly\""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := readTemplate(newPolicy(func(p *varvev1.BackupPolicy) { c.edit(&p.Spec.Template) }))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// The schedule's own are spec.suspend and what a user has annotated. Everything else is the policy's.
func TestAdjustSchedule(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		have   func(*harvesterv1.ScheduleVMBackup)
		policy func(*varvev1.BackupPolicy)
		check  func(*harvesterv1.ScheduleVMBackup) bool
	}{
		"what a user has changed is put back": {
			have: func(o *harvesterv1.ScheduleVMBackup) {
				o.Spec.Cron, o.Spec.Retain, o.Spec.MaxFailure = "0 5 * * *", 30, 9
				o.Annotations[harvesterv1.AnnotationLocation] = "drawer"
			},
			check: func(o *harvesterv1.ScheduleVMBackup) bool {
				return o.Spec.Cron == "0 1 * * *" && o.Spec.Retain == 8 && o.Spec.MaxFailure == 4 &&
					o.Annotations[harvesterv1.AnnotationLocation] == "shelf"
			},
		},
		"what a user has annotated stays": {
			have: func(o *harvesterv1.ScheduleVMBackup) { o.Annotations[harvesterv1.AnnotationRunAt] = "now" },
			check: func(o *harvesterv1.ScheduleVMBackup) bool {
				return o.Annotations[harvesterv1.AnnotationRunAt] == "now"
			},
		},
		"an annotation that the template has no more": {
			policy: func(p *varvev1.BackupPolicy) { p.Spec.Template.Annotations = nil },
			check: func(o *harvesterv1.ScheduleVMBackup) bool {
				_, has := o.Annotations[harvesterv1.AnnotationLocation]
				return !has && !strings.Contains(o.Annotations[varvev1.AnnotationPolicyAnnotations], "location")
			},
		},
		"one that has suspended itself stays suspended": {
			have:   func(o *harvesterv1.ScheduleVMBackup) { o.Spec.Suspend = true },
			policy: func(p *varvev1.BackupPolicy) { p.Spec.Template.Spec.Retain = 20 },
			check:  func(o *harvesterv1.ScheduleVMBackup) bool { return o.Spec.Suspend && o.Spec.Retain == 20 },
		},
		"the template is suspended": {
			policy: func(p *varvev1.BackupPolicy) { p.Spec.Template.Spec.Suspend = true },
			check: func(o *harvesterv1.ScheduleVMBackup) bool {
				return o.Spec.Suspend && o.Annotations[varvev1.AnnotationPolicySuspend] == "true"
			},
		},
		"one that a user has resumed goes on": {
			have:   func(o *harvesterv1.ScheduleVMBackup) { o.Annotations[varvev1.AnnotationPolicySuspend] = "true" },
			policy: func(p *varvev1.BackupPolicy) { p.Spec.Template.Spec.Suspend = true },
			check:  func(o *harvesterv1.ScheduleVMBackup) bool { return !o.Spec.Suspend },
		},
		"the template is resumed": {
			have: func(o *harvesterv1.ScheduleVMBackup) {
				o.Annotations[varvev1.AnnotationPolicySuspend], o.Spec.Suspend = "true", true
			},
			check: func(o *harvesterv1.ScheduleVMBackup) bool { return !o.Spec.Suspend },
		},
		"without a memory": {
			have: func(o *harvesterv1.ScheduleVMBackup) { o.Annotations, o.Spec.Suspend = nil, true },
			check: func(o *harvesterv1.ScheduleVMBackup) bool {
				return o.Spec.Suspend && o.Annotations[varvev1.AnnotationPolicySuspend] == "false"
			},
		},
		"without an owner": {
			have: func(o *harvesterv1.ScheduleVMBackup) { o.OwnerReferences = nil },
			check: func(o *harvesterv1.ScheduleVMBackup) bool {
				return metav1.IsControlledBy(o, newPolicy())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			have, policy := scheduleOf(t, "web"), newPolicy()
			if c.have != nil {
				c.have(have)
			}
			if c.policy != nil {
				c.policy(policy)
			}
			from, err := readTemplate(policy)
			if err != nil {
				t.Fatal(err)
			}
			if got := from.adjustSchedule(have); got == nil || !c.check(got) {
				t.Errorf("the schedule becomes %+v", got)
			}
		})
	}
}

func TestScheduleName(t *testing.T) {
	t.Parallel()
	if got := scheduleName("gold", "web"); got != "gold-web" {
		t.Error(got)
	}
	long := strings.Repeat("w", 240) + "."
	seen := map[string]bool{}
	for _, machine := range []string{long + "aaaaaaaaaa", long + "bbbbbbbbbb", strings.Repeat("w", 248)} {
		name := scheduleName("gold", machine)
		if why := validation.IsDNS1123Subdomain(name); len(why) > 0 || seen[name] || !strings.HasPrefix(name, "gold-") {
			t.Errorf("%s: %v", name, why)
		}
		seen[name] = true
	}
}

func TestNewStatus(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	policy := newPolicy()
	policy.Status = newStatus(policy, &decision{scheduled: 2}, now)
	want := varvev1.BackupPolicyStatus{
		ObservedGeneration: 3, Machines: 2,
		Conditions: []metav1.Condition{{
			Type: "Ready", Status: "True", ObservedGeneration: 3, LastTransitionTime: metav1.NewTime(now),
			Reason: "Scheduled", Message: "machines with a schedule: 2",
		}},
	}
	if diff := cmp.Diff(want, policy.Status); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, newStatus(policy, &decision{scheduled: 2}, now.Add(time.Hour))); diff != "" {
		t.Errorf("it is written again without a change: %s", diff)
	}

	var failed []varvev1.FailedMachine
	for i := range 25 {
		failed = append(failed, varvev1.FailedMachine{Name: string(rune('y' - i)), Reason: varvev1.ReasonNameTaken})
	}
	got := newStatus(policy, &decision{scheduled: 2, failed: failed}, now.Add(time.Hour))
	byName := slices.IsSortedFunc(got.Failed, func(a, b varvev1.FailedMachine) int {
		return strings.Compare(a.Name, b.Name)
	})
	if c := got.Conditions[0]; len(got.Failed) != 20 || !byName || got.Failed[0].Name != "a" || c.Status != "False" ||
		c.Reason != "NameTaken" ||
		c.Message != "machines without a schedule, or with an old one: 25. status.failed says why" ||
		!c.LastTransitionTime.Time.Equal(now.Add(time.Hour)) {
		t.Errorf("%+v", got)
	}
	if c := newStatus(policy, decide(&input{policy: newPolicy(func(p *varvev1.BackupPolicy) {
		p.Spec.Template.Spec.Cron = "never"
	})}), now).Conditions[0]; c.Status != "False" || c.Reason != "InvalidTemplate" ||
		!strings.Contains(c.Message, "the schedules stay as they are") {
		t.Errorf("%+v", c)
	}
}

// No event tells when a quota was raised. Of a name that is free again one does.
func TestNextTry(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]time.Duration{
		varvev1.ReasonRefused: 5 * time.Minute, varvev1.ReasonNameTaken: 0,
	} {
		d := &decision{failed: []varvev1.FailedMachine{{Name: "web", Reason: reason}}}
		if got := nextTry(d).RequeueAfter; got != want {
			t.Errorf("%s: after %s, want %s", reason, got, want)
		}
	}
}
