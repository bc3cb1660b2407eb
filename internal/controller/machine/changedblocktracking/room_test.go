package changedblocktracking

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/runepoch"
	"github.com/varvebackup/varve/internal/stateclaim"
)

var (
	claimsMachine = &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "1"}}
	noon          = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
)

// bound returns a state claim with a volume of this many bytes.
func bound(bytes int64, edits ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := StateClaim(claimsMachine, bytes, nil)
	c.UID = "current"
	c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, c.Spec.Resources.Requests.DeepCopy()
	for _, edit := range edits {
		edit(c)
	}
	return c
}

func successorOf(bytes int64, edits ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := bound(bytes, edits...)
	c.Name, c.UID, c.Annotations = layout.SecondStatePVC("vm"), "successor", map[string]string{layout.AnnotationMovesFrom: "current"}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

func unbound(c *corev1.PersistentVolumeClaim) { c.Status = corev1.PersistentVolumeClaimStatus{} }

func requests(bytes int64) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
	}
}

func fileSystemPending(c *corev1.PersistentVolumeClaim) {
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
}

func infeasible(c *corev1.PersistentVolumeClaim) {
	c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible,
	}
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimControllerResizeError, Status: corev1.ConditionTrue, Message: "no such size"}}
}

func usedBy(t *testing.T, run string) func(*corev1.PersistentVolumeClaim) {
	t.Helper()
	return func(c *corev1.PersistentVolumeClaim) {
		if err := (runepoch.Epoch{Claim: c.UID}).Begin(run).Write(c); err != nil {
			t.Error(err)
		}
	}
}

func beingDeleted(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }

func TestDecideClaim(t *testing.T) {
	t.Parallel()
	const enough, small = 100, 99
	foreign := bound(enough, func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences[0].UID = "2" })
	none := stateclaim.Growth{}
	step := func(s stateclaim.Step, age time.Duration, refusal string) stateclaim.Growth {
		return stateclaim.Begin(s, noon.Add(-age), refusal)
	}
	const expand, move = stateclaim.StepExpand, stateclaim.StepMove
	const noExpansion = "the claim's storage class does not allow expansion"
	const most = 3 * time.Minute
	pending := kubevirtv1.PhasePending
	for name, c := range map[string]struct {
		first, second *corev1.PersistentVolumeClaim
		phase         kubevirtv1.Phase
		growth        stateclaim.Growth
		fixed         bool // the class does not allow expansion
		unbindable    bool // the successor waits for its provisioner
		want          claimDecision
	}{
		"absent":                       {phase: pending, want: claimDecision{Action: claimCreate}},
		"large enough":                 {first: bound(enough), phase: pending, want: claimDecision{Action: claimKeep}},
		"its volume is large enough":   {first: bound(enough, requests(50)), phase: pending, want: claimDecision{Action: claimKeep}},
		"large enough after all":       {first: bound(enough), phase: pending, growth: step(expand, 0, ""), want: claimDecision{Action: claimKeep}},
		"exact, of an older Varve":     {first: bound(enough), phase: "", fixed: true, want: claimDecision{Action: claimKeep}},
		"too small under a pod":        {first: bound(small), phase: kubevirtv1.PhaseScheduling, want: claimDecision{Action: claimKeep}},
		"too small under a guest":      {first: bound(small), phase: kubevirtv1.PhaseRunning, want: claimDecision{Action: claimKeep}},
		"being deleted":                {first: bound(enough, beingDeleted), phase: pending, want: claimDecision{Action: claimWait}},
		"of another machine that left": {first: foreign, phase: pending, want: claimDecision{Action: claimForeign}},
		"never had a volume":           {first: bound(small, unbound), phase: pending, want: claimDecision{Action: claimReplace}},

		"can be expanded":            {first: bound(small), phase: pending, want: claimDecision{claimExpand, step(expand, 0, ""), most}},
		"is being expanded":          {first: bound(small, requests(enough)), phase: pending, growth: step(expand, time.Minute, ""), want: claimDecision{claimWait, step(expand, time.Minute, ""), 2 * time.Minute}},
		"its file system is to grow": {first: bound(small, requests(enough), fileSystemPending), phase: pending, growth: step(expand, time.Minute, ""), want: claimDecision{Action: claimKeep}},
		"expansion refused":          {first: bound(small), phase: pending, growth: step(expand, time.Minute, "quota"), want: claimDecision{claimSucceed, step(move, 0, "quota"), refusedRetry}},
		"expansion impossible":       {first: bound(small, requests(enough), infeasible), phase: pending, growth: step(expand, time.Second, ""), want: claimDecision{claimSucceed, step(move, 0, "no such size"), refusedRetry}},
		"expansion takes too long": {
			first: bound(small, requests(enough)), phase: pending, growth: step(expand, most, ""),
			want: claimDecision{claimSucceed, step(move, 0, "the storage has not expanded the volume in time"), refusedRetry},
		},

		"cannot be expanded":              {first: bound(small), phase: pending, fixed: true, want: claimDecision{claimSucceed, step(move, 0, noExpansion), refusedRetry}},
		"successor refused":               {first: bound(small), phase: pending, fixed: true, growth: step(move, time.Minute, "quota"), want: claimDecision{claimSucceed, step(move, time.Minute, "quota"), refusedRetry}},
		"successor refused, near the end": {first: bound(small), phase: pending, fixed: true, growth: step(move, most-time.Second, "quota"), want: claimDecision{claimSucceed, step(move, most-time.Second, "quota"), time.Second}},
		"successor refused for long":      {first: bound(small), phase: pending, fixed: true, growth: step(move, most, "quota"), want: claimDecision{claimReplace, step(move, most, "quota"), 0}},
		"a successor is being deleted":    {first: bound(small), second: successorOf(enough, beingDeleted), phase: pending, growth: step(move, 0, ""), want: claimDecision{claimWait, step(move, 0, ""), most}},

		"successor is there":              {first: bound(small), second: successorOf(enough), phase: pending, growth: step(move, time.Minute, "x"), want: claimDecision{Action: claimKeep, Growth: step(move, time.Minute, "x")}},
		"successor from an earlier start": {first: bound(small), second: successorOf(enough), phase: pending, want: claimDecision{Action: claimKeep, Growth: step(move, 0, "")}},
		"successor has no volume":         {first: bound(small), second: successorOf(enough, unbound), phase: pending, growth: step(move, time.Minute, ""), unbindable: true, want: claimDecision{claimWait, step(move, time.Minute, ""), 2 * time.Minute}},
		"successor gets no volume":        {first: bound(small), second: successorOf(enough, unbound), phase: pending, growth: step(move, most, ""), unbindable: true, want: claimDecision{claimReplace, step(move, most, ""), 0}},
		"successor too small, unused":     {first: bound(small), second: successorOf(small), phase: pending, growth: step(move, 0, ""), want: claimDecision{Action: claimRemake, Growth: step(move, 0, "")}},
		"successor too small, used":       {first: bound(small), second: successorOf(small, usedBy(t, "0")), phase: pending, growth: step(move, 0, ""), want: claimDecision{Action: claimReplace}},
		"the old one was deleted":         {second: successorOf(enough), phase: pending, growth: step(move, 0, ""), want: claimDecision{Action: claimKeep}},
		"launcher starts with both":       {first: bound(small), second: successorOf(enough, usedBy(t, "i")), phase: kubevirtv1.PhaseScheduled, want: claimDecision{Action: claimKeep}},
		"guest runs with both":            {first: bound(small), second: successorOf(enough, usedBy(t, "i")), phase: kubevirtv1.PhaseRunning, want: claimDecision{Action: claimRetire}},
		"guest runs without the new one":  {first: bound(small), second: successorOf(enough, usedBy(t, "0")), phase: kubevirtv1.PhaseRunning, want: claimDecision{Action: claimKeep}},
		"another start with both":         {first: bound(small), second: successorOf(enough, usedBy(t, "0")), phase: pending, growth: step(move, 0, ""), want: claimDecision{Action: claimKeep, Growth: step(move, 0, "")}},
	} {
		in := claimInput{
			Now: noon, VM: claimsMachine, Bytes: enough, Expandable: !c.fixed, SuccessorBinds: !c.unbindable,
			Claims:   stateclaim.Find("vm", claimsMachine.UID, map[string]*corev1.PersistentVolumeClaim{layout.StatePVC("vm"): c.first, layout.SecondStatePVC("vm"): c.second}),
			Instance: &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "i"}},
		}
		in.Instance.Status.Phase = c.phase
		var err error
		if in.Instance.Annotations, err = c.growth.Write(nil); err != nil {
			t.Fatal(err)
		}
		if c.want.Growth.Equal(none) {
			c.want.Growth = none
		}
		if diff := cmp.Diff(c.want, decideClaim(in)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
