//go:build controlplane

package admission

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/test/controlplane"
)

// scheduleWorld has the schedule "nightly" in a namespace, and one in another.
type scheduleWorld struct {
	*testing.T
	ns          string
	user, varve client.Client
	nightly     *harvesterv1.ScheduleVMBackup
}

// newScheduleWorld must be called while the webhook is served.
func newScheduleWorld(t *testing.T) *scheduleWorld {
	t.Helper()
	w := &scheduleWorld{
		T: t, ns: cluster.Namespace(t),
		user: cluster.Client(t, controlplane.Plain), varve: cluster.Client(t, controlplane.Controller),
	}
	w.nightly = scheduleOf(w.ns, "nightly", "0 1 * * *")
	w.nightly.Finalizers = []string{"example.com/stay"}
	payroll := scheduleOf(cluster.Namespace(t), "payroll", "30 3 * * *")
	for _, o := range []*harvesterv1.ScheduleVMBackup{w.nightly, payroll} {
		if err := w.user.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// create returns what the API server says of a new schedule.
func (w *scheduleWorld) create(cron string, annotations ...string) error {
	return w.user.Create(w.Context(), scheduleOf(w.ns, "another", cron, annotations...), client.DryRunAll)
}

// change returns what the API server says of a change of the schedule nightly. It is not kept.
func (w *scheduleWorld) change(edit func(*harvesterv1.ScheduleVMBackup)) error {
	o := w.nightly.DeepCopy()
	edit(o)
	return w.user.Update(w.Context(), o, client.DryRunAll)
}

func (w *scheduleWorld) annotate(key, value string) error {
	return w.change(func(o *harvesterv1.ScheduleVMBackup) { metav1.SetMetaDataAnnotation(&o.ObjectMeta, key, value) })
}

func (w *scheduleWorld) setCron(cron string) error {
	return w.change(func(o *harvesterv1.ScheduleVMBackup) { o.Spec.Cron = cron })
}

func (w *scheduleWorld) admitted(what string, err error) {
	w.Helper()
	if err != nil {
		w.Errorf("%s: %v", what, err)
	}
}

func (w *scheduleWorld) refused(what string, err error, text string) {
	w.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		w.Errorf("%s: got %v, want %q", what, err, text)
	}
}

// judged shows what the webhook refuses.
func (w *scheduleWorld) judged() {
	w.Helper()
	const skip = harvesterv1.AnnotationSkipCronCheck
	w.admitted("a free time", w.create("10 1 * * *"))
	near := w.create("5 1 * * *")
	w.refused("near", near, `admission webhook "schedules.varvebackup.io" denied the request: spec.cron: "5 1 * * *" is `+
		"due within 5m0s of ScheduleVMBackup nightly, and schedules that are due equally often must be 10m0s apart: use "+
		`"10 1 * * *", which is free, or set the annotation `+skip+` to "enable"`)
	if !apierrors.IsInvalid(near) {
		w.Errorf("the user would look for a right that is missing: %v", near)
	}
	w.refused("near a stranger", w.create("35 3 * * *"), "is due within 5m0s of a schedule in another namespace")
	w.admitted("near, unchecked", w.create("5 1 * * *", skip, "enable"))
	w.refused("too often", w.create("0,30 1 * * *"), "is due 30m0s apart")
	w.refused("unreadable, unchecked", w.create("0 1 * * tomorrow", skip, "enable"), "day of the week")
	w.admitted("a new time", w.setCron("5 1 * * *"))
	w.refused("a new time near a stranger", w.setCron("31 3 * * *"), "in another namespace")
	for key, value := range map[string]string{
		harvesterv1.AnnotationTimeZone: "Europe/Atlantis", harvesterv1.AnnotationJitter: "soon",
		harvesterv1.AnnotationKeepHourly: "x", harvesterv1.AnnotationKeepDaily: "x", harvesterv1.AnnotationKeepWeekly: "x",
		harvesterv1.AnnotationKeepMonthly: "x", harvesterv1.AnnotationKeepYearly: "x", harvesterv1.AnnotationKeepWithin: "x",
	} {
		w.refused(key, w.annotate(key, value), "denied the request")
	}
	unchecked := scheduleOf(w.ns, "unchecked", "1 1 * * *", skip, "enable")
	if err := w.user.Create(w.Context(), unchecked); err != nil {
		w.Fatal(err)
	}
	delete(unchecked.Annotations, skip)
	w.refused("no longer unchecked", w.user.Update(w.Context(), unchecked), "within 1m0s of ScheduleVMBackup nightly")
}

// goOnWithoutWebhook shows that nothing but new times waits for the webhook, while it is away.
func (w *scheduleWorld) goOnWithoutWebhook() {
	w.Helper()
	const away = "failed calling webhook"
	w.refused("a new schedule", w.create("0 7 * * *"), away)
	w.refused("a new time", w.setCron("0 7 * * *"), away)
	w.refused("no time zone any more", w.annotate(harvesterv1.AnnotationTimeZone, ""), away)
	w.admitted("another annotation", w.annotate(harvesterv1.AnnotationRunAt, "2027-01-01T00:00:00Z"))
	w.admitted("retain", w.change(func(o *harvesterv1.ScheduleVMBackup) { o.Spec.Retain = 9 }))
	base := w.nightly.DeepCopy()
	w.nightly.Spec.Suspend = true
	w.admitted("the controller suspends it", w.varve.Patch(w.Context(), w.nightly, client.MergeFrom(base)))
	w.nightly.Status.NextScheduleTime = ptr.To(metav1.Now())
	w.admitted("the controller's status", w.varve.Status().Update(w.Context(), w.nightly))
	w.admitted("a deletion", w.user.Delete(w.Context(), w.nightly))
	if err := w.user.Get(w.Context(), client.ObjectKeyFromObject(w.nightly), w.nightly); err != nil {
		w.Fatal(err)
	}
	w.admitted("a new time of what is being deleted", w.setCron("0 9 * * *"))
	w.nightly.Finalizers = nil
	w.admitted("its end", w.user.Update(w.Context(), w.nightly))
}
