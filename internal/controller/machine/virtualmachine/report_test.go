package virtualmachine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/condition"
	"github.com/varvebackup/varve/internal/layout"
)

func TestObstacles_areShown(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]struct {
		on     kubevirtv1.ConditionType
		status kubevirtv1.PrintableStatus
	}{
		"FailedPvcNotFound":       {kubevirtv1.ConditionSynchronized, kubevirtv1.VirtualMachinePvcNotFound},
		"ErrImagePull":            {kubevirtv1.ConditionSynchronized, kubevirtv1.VirtualMachineErrImagePull},
		"Unschedulable":           {kubevirtv1.ConditionPodScheduled, kubevirtv1.VirtualMachineUnschedulable},
		"WaitingForVolumeBinding": {kubevirtv1.ConditionPodScheduled, kubevirtv1.VirtualMachineWaitingForVolumeBinding},
		"SomethingElse":           {kubevirtv1.ConditionSynchronized, kubevirtv1.VirtualMachineStarting},
	} {
		i := instance(kubevirtv1.PhaseScheduling)
		i.Status.Conditions = []kubevirtv1.Condition{{Type: want.on, Status: corev1.ConditionFalse, Reason: reason}}
		d := decide(input{Now: now, VM: machine(kubevirtv1.RunStrategyAlways, ""), Instance: i})
		if d.Status.PrintableStatus != want.status {
			t.Errorf("%s: %s, want %s", reason, d.Status.PrintableStatus, want.status)
		}
		if condition.Find(d.Status.Conditions, want.on) == nil {
			t.Errorf("%s: the condition is not on the machine", reason)
		}
	}
}

func TestReadyAndPaused(t *testing.T) {
	t.Parallel()
	i := instance(kubevirtv1.PhaseRunning)
	i.Status.Conditions = []kubevirtv1.Condition{{Type: kubevirtv1.ConditionReady, Status: corev1.ConditionTrue}}
	d := decide(input{Now: now, VM: machine(kubevirtv1.RunStrategyAlways, ""), Instance: i})
	if !d.Status.Ready || !d.Status.Created || !condition.True(d.Status.Conditions, kubevirtv1.ConditionReady) {
		t.Errorf("%+v", d.Status)
	}
	i.Status.Conditions = append(i.Status.Conditions, kubevirtv1.Condition{Type: kubevirtv1.ConditionPaused, Status: corev1.ConditionTrue})
	d = decide(input{Now: now, VM: machine(kubevirtv1.RunStrategyAlways, ""), Instance: i})
	if d.Status.PrintableStatus != kubevirtv1.VirtualMachinePaused {
		t.Errorf("paused: %s", d.Status.PrintableStatus)
	}
	d = decide(input{Now: now, VM: machine(kubevirtv1.RunStrategyHalted, "")})
	if c := condition.Find(d.Status.Conditions, kubevirtv1.ConditionReady); d.Status.Ready || d.Status.Created || c == nil || c.Reason != ReasonNoInstance {
		t.Errorf("without an instance: %+v", d.Status)
	}
}

// TestStatus_settles fails if a decision based on its own result differs: the controller would write forever.
func TestStatus_settles(t *testing.T) {
	t.Parallel()
	for _, in := range []input{
		{VM: machine(kubevirtv1.RunStrategyHalted, "")},
		{VM: machine(kubevirtv1.RunStrategyAlways, ""), Instance: instance(kubevirtv1.PhaseScheduling)},
		{VM: machine(kubevirtv1.RunStrategyAlways, ""), Foreign: true},
		{VM: machine(kubevirtv1.RunStrategyAlways, ""), CreateError: "no"},
		{VM: machine(kubevirtv1.RunStrategyManual, ""), Instance: instance(kubevirtv1.PhaseFailed)},
	} {
		in.Now = now
		in.VM.Status = decide(in).Status
		first := in.VM.Status.DeepCopy()
		in.Now, in.CreateError = now.Add(time.Minute), ""
		second := decide(in).Status
		for i, c := range second.Conditions {
			if c != first.Conditions[i] {
				t.Errorf("%+v became %+v", first.Conditions[i], c)
			}
		}
		if second.PrintableStatus != first.PrintableStatus || len(second.Conditions) != len(first.Conditions) {
			t.Errorf("%+v became %+v", first, second)
		}
	}
}

func TestRestartRequired_whileTheTemplateDiffers(t *testing.T) {
	t.Parallel()
	changed := func(p kubevirtv1.Phase, edit func(*kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineInstance)) decision {
		vm := machine(kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyAlways)
		vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
		vm.Spec.Template.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("1Gi"))}
		i := instance(p)
		i.Spec = instanceFor(vm, true).Spec
		i.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{{Name: "backup"}}
		if edit != nil {
			edit(vm, i)
		}
		return decide(input{Now: now, VM: vm, Instance: i})
	}
	more := func(vm *kubevirtv1.VirtualMachine, _ *kubevirtv1.VirtualMachineInstance) {
		vm.Spec.Template.Spec.Domain.Memory.Guest = ptr.To(resource.MustParse("2Gi"))
	}
	for name, c := range map[string]struct {
		d    decision
		says string
	}{
		"as its template": {changed(kubevirtv1.PhaseRunning, nil), ""},
		"more memory":     {changed(kubevirtv1.PhaseRunning, more), "in spec.domain.memory.guest: restart"},
		"not started yet": {changed(kubevirtv1.PhaseScheduling, more), "in spec.domain.memory.guest: restart"},
		"has ended":       {changed(kubevirtv1.PhaseSucceeded, more), ""},
		"a wish for many": {changed(kubevirtv1.PhaseRunning, func(vm *kubevirtv1.VirtualMachine, i *kubevirtv1.VirtualMachineInstance) {
			i.Spec.Volumes = []kubevirtv1.Volume{{Name: "kept"}}
			vm.Spec.Template.Spec.Volumes = []kubevirtv1.Volume{{Name: "kept"}}
			for n := range 12 {
				vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, kubevirtv1.Volume{Name: fmt.Sprintf("v%02d", n)})
			}
		}), "spec.volumes[v09] and 2 more: restart"},
		"gone": {decide(input{Now: now, VM: machine(kubevirtv1.RunStrategyHalted, "")}), ""},
	} {
		got := condition.Find(c.d.Status.Conditions, kubevirtv1.ConditionRestartRequired)
		switch {
		case c.says == "" && got != nil, c.says != "" && (got == nil || got.Status != corev1.ConditionTrue || got.Reason != ReasonTemplateChanged || !strings.Contains(got.Message, c.says)):
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The instance that failed is deleted at once, and only the machine can still say why it failed.
func TestFailedStart_isExplainedUntilAGuestRuns(t *testing.T) {
	t.Parallel()
	for _, s := range []kubevirtv1.RunStrategy{kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyManual, kubevirtv1.RunStrategyRerunOnFailure} {
		failed := instance(kubevirtv1.PhaseFailed)
		failed.Status.Reason = "InitFailed"
		failed.Status.Conditions = []kubevirtv1.Condition{{Type: kubevirtv1.ConditionReady, Status: corev1.ConditionFalse, Reason: "InitFailed", Message: "Init container kernel-boot: no file /boot/none"}}
		const why = "The instance failed before its guest ran: Init container kernel-boot: no file /boot/none"
		vm := machine(s, s)
		d := decide(input{Now: now, VM: vm, Instance: failed})
		if note := startFailureNote(d); !strings.HasSuffix(note, "InitFailed: "+why) {
			t.Errorf("%s: the event says %q", s, note)
		}
		vm.Status = d.Status
		later := now.Add(time.Hour)
		for name, i := range map[string]*kubevirtv1.VirtualMachineInstance{
			"failed": failed, "being deleted": deleted(failed.DeepCopy()), "gone": nil, "the next one": instance(kubevirtv1.PhaseScheduling),
		} {
			d := decide(input{Now: later, VM: vm, Instance: i})
			c := condition.Find(d.Status.Conditions, kubevirtv1.ConditionFailure)
			if c == nil || c.Status != corev1.ConditionTrue || c.Reason != "InitFailed" || c.Message != why || !c.LastTransitionTime.Time.Equal(now) {
				t.Errorf("%s, instance %s: %+v", s, name, c)
			}
			if note := startFailureNote(d); note != "" && d.Status.StartFailure != nil {
				t.Errorf("%s, instance %s: another event: %s", s, name, note)
			}
		}
		for name, i := range map[string]*kubevirtv1.VirtualMachineInstance{
			"runs": instance(kubevirtv1.PhaseRunning), "has run": instance(kubevirtv1.PhaseSucceeded),
		} {
			if c := condition.Find(decide(input{Now: later, VM: vm, Instance: i}).Status.Conditions, kubevirtv1.ConditionFailure); c != nil {
				t.Errorf("%s, the guest %s: %+v", s, name, c)
			}
		}
	}
}

func TestForeignInstance_isNotTouched(t *testing.T) {
	t.Parallel()
	d := decide(input{Now: now, VM: machine(kubevirtv1.RunStrategyAlways, ""), Foreign: true})
	c := condition.Find(d.Status.Conditions, kubevirtv1.ConditionFailure)
	if d.Create || d.Delete || c == nil || c.Reason != ReasonInstanceExists {
		t.Errorf("%+v", d)
	}
}

func TestInstance_followsTheTemplate(t *testing.T) {
	t.Parallel()
	vm := machine(kubevirtv1.RunStrategyAlways, "")
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{ObjectMeta: kubevirtv1.TemplateMetadata{
		Labels:      map[string]string{"a": "b", layout.LabelNodeName: "forged"},
		Annotations: map[string]string{"c": "d", layout.AnnotationTracking: "true", layout.AnnotationForceStop: "true"},
	}}
	vm.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	plain, tracked := instanceFor(vm, false), instanceFor(vm, true)
	if plain.Labels["a"] != "b" || plain.Labels[layout.LabelVM] != "vm" || len(plain.Labels) != 2 {
		t.Errorf("labels: %v", plain.Labels)
	}
	if plain.Annotations["c"] != "d" || len(plain.Annotations) != 1 {
		t.Errorf("annotations: %v", plain.Annotations)
	}
	if tracked.Annotations[layout.AnnotationTracking] != "true" || len(tracked.Annotations) != 2 {
		t.Errorf("annotations of a tracked instance: %v", tracked.Annotations)
	}
	if !metav1.IsControlledBy(plain, vm) || plain.Finalizers[0] != layout.FinalizerInstance || plain.Spec.NodeSelector["disk"] != "ssd" {
		t.Errorf("%+v", plain)
	}
	plain.Spec.NodeSelector["disk"] = "changed"
	if vm.Spec.Template.Spec.NodeSelector["disk"] != "ssd" {
		t.Error("the instance shares memory with the template")
	}
}

func TestInstance_takesNoReservedMetadataFromTheTemplate(t *testing.T) {
	t.Parallel()
	vm := &kubevirtv1.VirtualMachine{Spec: kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{}}}
	for _, m := range []*map[string]string{&vm.Spec.Template.ObjectMeta.Labels, &vm.Spec.Template.ObjectMeta.Annotations} {
		*m = map[string]string{"varvebackup.io/changed-block-tracking": "true", "varvebackup.io/attachment": "u", "kubevirt.io/nodeName": "n", "mine": "yes"}
	}
	i := instanceFor(vm, false)
	for _, key := range []string{"varvebackup.io/changed-block-tracking", "varvebackup.io/attachment"} {
		if i.Labels[key] != "" || i.Annotations[key] != "" {
			t.Errorf("%s is taken from the template", key)
		}
	}
	if i.Labels["kubevirt.io/nodeName"] != "" || i.Labels["mine"] != "yes" || i.Annotations["mine"] != "yes" {
		t.Errorf("labels %v, annotations %v", i.Labels, i.Annotations)
	}
}
