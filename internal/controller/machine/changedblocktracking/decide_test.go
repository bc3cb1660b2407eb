package changedblocktracking

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
)

const (
	none           = kubevirtv1.ChangedBlockTrackingState("")
	pendingRestart = kubevirtv1.ChangedBlockTrackingPendingRestart
	initializing   = kubevirtv1.ChangedBlockTrackingInitializing
	enabled        = kubevirtv1.ChangedBlockTrackingEnabled
	disabled       = kubevirtv1.ChangedBlockTrackingDisabled
	gateOff        = kubevirtv1.ChangedBlockTrackingFGDisabled
)

// guest returns an instance with or without the annotation that shows s.
func guest(annotated bool, s kubevirtv1.ChangedBlockTrackingState) *kubevirtv1.VirtualMachineInstance {
	i := &kubevirtv1.VirtualMachineInstance{}
	i.Status.Phase = kubevirtv1.PhaseRunning
	if annotated {
		i.Annotations = map[string]string{layout.AnnotationTracking: "true"}
	}
	if s != none {
		i.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{State: s}
	}
	return i
}

func ended(i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
	i.Status.Phase = kubevirtv1.PhaseSucceeded
	return i
}

func stopping(i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
	i.DeletionTimestamp = &metav1.Time{}
	return i
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const need, drop = true, true
	for name, c := range map[string]struct {
		in   input
		want decision
	}{
		"selected, never started":          {input{true, false, none, nil}, decision{}},
		"selected, stopped, was enabled":   {input{true, false, enabled, nil}, decision{VM: enabled}},
		"selected, stopped, was disabled":  {input{true, false, disabled, nil}, decision{VM: disabled}},
		"selected, ended":                  {input{true, false, enabled, ended(guest(true, enabled))}, decision{VM: enabled, Instance: enabled}},
		"selected, starting":               {input{true, false, none, guest(true, none)}, decision{initializing, initializing, need, false}},
		"selected, overlays not up":        {input{true, false, initializing, guest(true, initializing)}, decision{initializing, initializing, need, false}},
		"selected, enabled":                {input{true, false, initializing, guest(true, enabled)}, decision{enabled, enabled, need, false}},
		"selected, being stopped":          {input{true, false, enabled, stopping(guest(true, enabled))}, decision{VM: enabled, Instance: enabled}},
		"selected while it runs":           {input{true, false, none, guest(false, none)}, decision{VM: pendingRestart, Instance: pendingRestart}},
		"selected again while it runs":     {input{true, false, disabled, guest(false, disabled)}, decision{VM: pendingRestart, Instance: pendingRestart}},
		"deselected while it runs":         {input{false, false, enabled, guest(true, enabled)}, decision{pendingRestart, pendingRestart, need, false}},
		"deselected before it is up":       {input{false, false, initializing, guest(true, initializing)}, decision{pendingRestart, pendingRestart, need, false}},
		"deselected, then selected again":  {input{true, false, pendingRestart, guest(true, pendingRestart)}, decision{initializing, initializing, need, false}},
		"selected, then deselected again":  {input{false, false, pendingRestart, guest(false, pendingRestart)}, decision{disabled, disabled, false, drop}},
		"deselected, stopped":              {input{false, false, pendingRestart, nil}, decision{VM: disabled, DropClaim: drop}},
		"deselected, ended, not gone":      {input{false, false, pendingRestart, ended(guest(true, pendingRestart))}, decision{VM: disabled, Instance: pendingRestart}},
		"deselected, restarted without it": {input{false, false, disabled, guest(false, none)}, decision{disabled, disabled, false, drop}},
		"never selected, running":          {input{false, false, none, guest(false, none)}, decision{DropClaim: drop}},
		"gate off, running":                {input{false, true, enabled, guest(true, enabled)}, decision{gateOff, enabled, need, false}},
		"gate off, overlays not up":        {input{false, true, initializing, guest(true, initializing)}, decision{gateOff, initializing, need, false}},
		"gate off, stopped":                {input{false, true, enabled, nil}, decision{VM: gateOff}},
		"gate off, ended":                  {input{false, true, gateOff, ended(guest(true, enabled))}, decision{VM: gateOff, Instance: enabled}},
		"gate off, restarted without it":   {input{false, true, gateOff, guest(false, none)}, decision{VM: gateOff, DropClaim: drop}},
		"gate off, never tracked":          {input{false, true, none, guest(false, none)}, decision{DropClaim: drop}},
		"gate off, was disabled":           {input{false, true, disabled, nil}, decision{VM: disabled, DropClaim: drop}},
		"gate on again, still running":     {input{true, false, gateOff, guest(true, enabled)}, decision{enabled, enabled, need, false}},
		"gate on again, stopped":           {input{true, false, gateOff, nil}, decision{VM: gateOff}},
		"gate on again, not selected":      {input{false, false, gateOff, nil}, decision{VM: disabled, DropClaim: drop}},
		"never selected, stopped":          {input{false, false, none, nil}, decision{DropClaim: drop}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, decide(c.in)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStateEvent_warnsOfARestartThatIsNeeded(t *testing.T) {
	t.Parallel()
	for state := range messages {
		want := corev1.EventTypeNormal
		if state == kubevirtv1.ChangedBlockTrackingPendingRestart {
			want = corev1.EventTypeWarning
		}
		if got := eventType(state); got != want {
			t.Errorf("%s: %s", state, got)
		}
	}
}
