package kubevirtbackup

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// A wait that somebody has to end is a warning. One that ends by itself is not.
func TestWaitingEvent_warnsIfTheUserHasToAct(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*world)
		want   string
	}{
		"no claim":     {func(w *world) { w.claim = nil }, corev1.EventTypeWarning},
		"no tracker":   {func(w *world) { w.tracker = nil }, corev1.EventTypeWarning},
		"no machine":   {func(w *world) { w.vm, w.instance = nil, nil }, corev1.EventTypeWarning},
		"stopped":      {func(w *world) { w.instance = nil }, corev1.EventTypeWarning},
		"not selected": {func(w *world) { w.instance.Status.ChangedBlockTracking = nil }, corev1.EventTypeWarning},
		"gate off":     {func(w *world) { w.configuration = &kubevirtv1.KubeVirt{} }, corev1.EventTypeWarning},
		"starts":       {func(w *world) { w.instance.Status.Phase = kubevirtv1.PhaseScheduling }, corev1.EventTypeNormal},
		"is being set up": {func(w *world) {
			w.instance.Status.ChangedBlockTracking.State = kubevirtv1.ChangedBlockTrackingInitializing
		}, corev1.EventTypeNormal},
		"node busy": {func(w *world) { w.load.Copying = places("ns/a", "ns/b", "ns/c", "ns/d") }, corev1.EventTypeNormal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.track()
			b := w.create("b", true)
			test.change(w)
			d := decide(w.input(b))
			if d.Step != stepStatus {
				t.Fatalf("step %q", d.Step)
			}
			e := eventFor(&b.Status, d.Status, d.UserActs)
			if e == nil || e.reason != EventWaiting || e.kind != test.want {
				t.Errorf("%s: event %+v, want %s", d.Status.Message, e, test.want)
			}
			if e := eventFor(d.Status, d.Status, d.UserActs); e != nil {
				t.Errorf("the same again: %+v", e)
			}
		})
	}
}

// One reason has messages of both kinds: a guest that is on its way may end instead.
func TestWaitingEvent_followsTheMessage(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.track()
	b := w.create("b", true)
	w.instance.Status.Phase = kubevirtv1.PhaseScheduling
	w.step(b)
	w.instance.Status.Phase = kubevirtv1.PhaseFailed
	d := decide(w.input(b))
	e := eventFor(&b.Status, d.Status, d.UserActs)
	if d.Status.Reason != backupv1.ReasonVMNotRunning || e == nil || e.kind != corev1.EventTypeWarning {
		t.Errorf("%s %s: event %+v", d.Status.Reason, d.Status.Message, e)
	}
}
