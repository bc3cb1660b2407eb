package harvesterschedule

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/child"
	"github.com/varvebackup/varve/test/gen"
)

// reportedMetrics returns the names of the metrics that are reported of schedules in a namespace.
func reportedMetrics(t *testing.T, namespace string) (names []string) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "namespace" && l.GetValue() == namespace {
					names = append(names, f.GetName())
				}
			}
		}
	}
	return names
}

// A schedule is reported from the first time that it is dealt with until it is gone.
func TestMetrics_followTheSchedule(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kubevirtv1.AddToScheme, harvesterv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	o := gen.Schedule(gen.Meta("reported", "nightly"), "vm")
	o.CreationTimestamp.Time = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build()
	clock := testingclock.NewFakePassiveClock(o.CreationTimestamp.Add(time.Hour))
	r := &reconciler{
		Options: Options{Namespace: "varve", Clock: clock}, cached: c, live: c,
		events: events.NewFakeRecorder(10), alarms: newAlarms(clock),
		children: child.Maker{Writer: c, Live: c, Label: harvesterv1.LabelSchedule},
	}
	pass := func() []string {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
			t.Fatal(err)
		}
		return reportedMetrics(t, o.Namespace)
	}
	// The run is skipped: there is no machine.
	got := pass()
	for _, name := range []string{
		"varve_schedule_unmet_since_timestamp_seconds", "varve_schedule_next_run_timestamp_seconds",
		"varve_schedule_runs_total",
	} {
		if !slices.Contains(got, name) {
			t.Errorf("%s is not reported: %v", name, got)
		}
	}
	if err := c.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := pass(); len(got) != 0 {
		t.Errorf("%v of a schedule that is gone", got)
	}
}
