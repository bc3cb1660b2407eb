package changedblocktracking

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
		in   Input
		want Decision
	}{
		"selected, never started":          {Input{true, false, none, nil}, Decision{}},
		"selected, stopped, was enabled":   {Input{true, false, enabled, nil}, Decision{VM: enabled}},
		"selected, stopped, was disabled":  {Input{true, false, disabled, nil}, Decision{VM: disabled}},
		"selected, ended":                  {Input{true, false, enabled, ended(guest(true, enabled))}, Decision{VM: enabled, Instance: enabled}},
		"selected, starting":               {Input{true, false, none, guest(true, none)}, Decision{initializing, initializing, need, false}},
		"selected, overlays not up":        {Input{true, false, initializing, guest(true, initializing)}, Decision{initializing, initializing, need, false}},
		"selected, enabled":                {Input{true, false, initializing, guest(true, enabled)}, Decision{enabled, enabled, need, false}},
		"selected, being stopped":          {Input{true, false, enabled, stopping(guest(true, enabled))}, Decision{VM: enabled, Instance: enabled}},
		"selected while it runs":           {Input{true, false, none, guest(false, none)}, Decision{VM: pendingRestart, Instance: pendingRestart}},
		"selected again while it runs":     {Input{true, false, disabled, guest(false, disabled)}, Decision{VM: pendingRestart, Instance: pendingRestart}},
		"deselected while it runs":         {Input{false, false, enabled, guest(true, enabled)}, Decision{pendingRestart, pendingRestart, need, false}},
		"deselected before it is up":       {Input{false, false, initializing, guest(true, initializing)}, Decision{pendingRestart, pendingRestart, need, false}},
		"deselected, then selected again":  {Input{true, false, pendingRestart, guest(true, pendingRestart)}, Decision{initializing, initializing, need, false}},
		"selected, then deselected again":  {Input{false, false, pendingRestart, guest(false, pendingRestart)}, Decision{disabled, disabled, false, drop}},
		"deselected, stopped":              {Input{false, false, pendingRestart, nil}, Decision{VM: disabled, DropClaim: drop}},
		"deselected, ended, not gone":      {Input{false, false, pendingRestart, ended(guest(true, pendingRestart))}, Decision{VM: disabled, Instance: pendingRestart}},
		"deselected, restarted without it": {Input{false, false, disabled, guest(false, none)}, Decision{disabled, disabled, false, drop}},
		"never selected, running":          {Input{false, false, none, guest(false, none)}, Decision{DropClaim: drop}},
		"gate off, running":                {Input{false, true, enabled, guest(true, enabled)}, Decision{gateOff, enabled, need, false}},
		"gate off, overlays not up":        {Input{false, true, initializing, guest(true, initializing)}, Decision{gateOff, initializing, need, false}},
		"gate off, stopped":                {Input{false, true, enabled, nil}, Decision{VM: gateOff}},
		"gate off, ended":                  {Input{false, true, gateOff, ended(guest(true, enabled))}, Decision{VM: gateOff, Instance: enabled}},
		"gate off, restarted without it":   {Input{false, true, gateOff, guest(false, none)}, Decision{VM: gateOff, DropClaim: drop}},
		"gate off, never tracked":          {Input{false, true, none, guest(false, none)}, Decision{DropClaim: drop}},
		"gate off, was disabled":           {Input{false, true, disabled, nil}, Decision{VM: disabled, DropClaim: drop}},
		"gate on again, still running":     {Input{true, false, gateOff, guest(true, enabled)}, Decision{enabled, enabled, need, false}},
		"gate on again, stopped":           {Input{true, false, gateOff, nil}, Decision{VM: gateOff}},
		"gate on again, not selected":      {Input{false, false, gateOff, nil}, Decision{VM: disabled, DropClaim: drop}},
		"never selected, stopped":          {Input{false, false, none, nil}, Decision{DropClaim: drop}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, Decide(c.in)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecide_claim(t *testing.T) {
	t.Parallel()
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "1"}}
	other := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "2"}}
	going := StateClaim(vm, 100, nil)
	going.DeletionTimestamp = &metav1.Time{}
	grown := StateClaim(vm, 50, nil)
	grown.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Ki")}
	for name, c := range map[string]struct {
		have  *corev1.PersistentVolumeClaim
		phase kubevirtv1.Phase
		want  claimAction
	}{
		"absent":                       {nil, kubevirtv1.PhasePending, claimCreate},
		"large enough":                 {StateClaim(vm, 100, nil), kubevirtv1.PhasePending, claimKeep},
		"its volume is large enough":   {grown, kubevirtv1.PhasePending, claimKeep},
		"too small before the pod":     {StateClaim(vm, 99, nil), kubevirtv1.PhasePending, claimReplace},
		"too small under a pod":        {StateClaim(vm, 99, nil), kubevirtv1.PhaseScheduling, claimKeep},
		"being deleted":                {going, kubevirtv1.PhasePending, claimWait},
		"of another machine that left": {StateClaim(other, 100, nil), kubevirtv1.PhasePending, claimForeign},
	} {
		if got := decideClaim(vm, c.have, 100, c.phase); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
