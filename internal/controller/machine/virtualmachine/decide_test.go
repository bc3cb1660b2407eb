package virtualmachine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

type request = kubevirtv1.StateChangeRequest

var (
	startRequest = request{Action: kubevirtv1.StartRequest}
	stopI        = request{Action: kubevirtv1.StopRequest, UID: ptr.To(types.UID("i"))}
	stopOther    = request{Action: kubevirtv1.StopRequest, UID: ptr.To(types.UID("other"))}
)

func machine(s, seen kubevirtv1.RunStrategy, requests ...request) *kubevirtv1.VirtualMachine {
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "vm"}}
	vm.Spec.RunStrategy = &s
	vm.Status.RunStrategy = seen
	vm.Status.StateChangeRequests = requests
	return vm
}

func instance(p kubevirtv1.Phase) *kubevirtv1.VirtualMachineInstance {
	i := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "i"}}
	i.Status.Phase = p
	if p == kubevirtv1.PhaseRunning || p == kubevirtv1.PhaseSucceeded {
		i.Status.PhaseTransitionTimestamps = []kubevirtv1.PhaseTransitionTimestamp{{Phase: kubevirtv1.PhaseRunning}}
	}
	return i
}

func deleted(i *kubevirtv1.VirtualMachineInstance) *kubevirtv1.VirtualMachineInstance {
	i.DeletionTimestamp = &metav1.Time{Time: now}
	return i
}

// verdict is the part of a decision that a table checks.
type verdict struct {
	Create, Delete bool
	RunStrategy    kubevirtv1.RunStrategy
	Requests       []request
	Printable      kubevirtv1.PrintableStatus
}

func TestRunStrategies(t *testing.T) {
	t.Parallel()
	const (
		always = kubevirtv1.RunStrategyAlways
		halted = kubevirtv1.RunStrategyHalted
		manual = kubevirtv1.RunStrategyManual
		rerun  = kubevirtv1.RunStrategyRerunOnFailure

		pending   = kubevirtv1.PhasePending
		running   = kubevirtv1.PhaseRunning
		failed    = kubevirtv1.PhaseFailed
		succeeded = kubevirtv1.PhaseSucceeded

		stopped  = kubevirtv1.VirtualMachineStopped
		starting = kubevirtv1.VirtualMachineStarting
		isUp     = kubevirtv1.VirtualMachineRunning
		stopping = kubevirtv1.VirtualMachineStopping
		crash    = kubevirtv1.VirtualMachineCrashLoopBackOff
	)
	for name, c := range map[string]struct {
		vm       *kubevirtv1.VirtualMachine
		instance *kubevirtv1.VirtualMachineInstance
		want     verdict
	}{
		"always: no instance":                {machine(always, ""), nil, verdict{Create: true, Printable: starting}},
		"always: starting":                   {machine(always, always), instance(pending), verdict{Printable: starting}},
		"always: running":                    {machine(always, always), instance(running), verdict{Printable: isUp}},
		"always: guest shut down":            {machine(always, always), instance(succeeded), verdict{Delete: true, Printable: stopped}},
		"always: failed before it ran":       {machine(always, always), instance(failed), verdict{Delete: true, Printable: crash}},
		"always: being deleted":              {machine(always, always), deleted(instance(running)), verdict{Printable: stopping}},
		"always: restart":                    {machine(always, always, stopI, startRequest), instance(running), verdict{Delete: true, Requests: []request{stopI, startRequest}, Printable: stopping}},
		"always: restart, stop under way":    {machine(always, always, stopI, startRequest), deleted(instance(running)), verdict{Requests: []request{stopI, startRequest}, Printable: stopping}},
		"always: restart, stopped":           {machine(always, always, stopI, startRequest), nil, verdict{Create: true, Requests: []request{startRequest}, Printable: starting}},
		"always: restart, started":           {machine(always, always, startRequest), instance(pending), verdict{Printable: starting}},
		"always: stop of another":            {machine(always, always, stopOther), instance(running), verdict{Printable: isUp}},
		"halted: no instance":                {machine(halted, ""), nil, verdict{Printable: stopped}},
		"halted: running":                    {machine(halted, always), instance(running), verdict{Delete: true, Printable: stopping}},
		"halted: start":                      {machine(halted, halted, startRequest), nil, verdict{RunStrategy: always, Requests: []request{startRequest}, Printable: stopped}},
		"halted: final":                      {machine(halted, halted), instance(succeeded), verdict{Delete: true, Printable: stopped}},
		"manual: no instance":                {machine(manual, ""), nil, verdict{Printable: stopped}},
		"manual: start":                      {machine(manual, manual, startRequest), nil, verdict{Create: true, Requests: []request{startRequest}, Printable: starting}},
		"manual: started":                    {machine(manual, manual, startRequest), instance(pending), verdict{Printable: starting}},
		"manual: running":                    {machine(manual, always), instance(running), verdict{Printable: isUp}},
		"manual: stop":                       {machine(manual, manual, stopI), instance(running), verdict{Delete: true, Requests: []request{stopI}, Printable: stopping}},
		"manual: stopped":                    {machine(manual, manual, stopI), nil, verdict{Printable: stopped}},
		"manual: guest shut down":            {machine(manual, manual), instance(succeeded), verdict{Delete: true, Printable: stopped}},
		"manual: failed":                     {machine(manual, manual), instance(failed), verdict{Delete: true, Printable: stopped}},
		"manual: start while it ends":        {machine(manual, manual, startRequest), deleted(instance(running)), verdict{Requests: []request{startRequest}, Printable: stopping}},
		"manual: start after its end":        {machine(manual, manual, startRequest), instance(succeeded), verdict{Delete: true, Requests: []request{startRequest}, Printable: stopped}},
		"rerun: first start":                 {machine(rerun, ""), nil, verdict{Create: true, Requests: []request{startRequest}, Printable: starting}},
		"rerun: from halted, stop under way": {machine(rerun, halted), deleted(instance(running)), verdict{Requests: []request{startRequest}, Printable: stopping}},
		"rerun: from always, running":        {machine(rerun, always), instance(running), verdict{Printable: isUp}},
		"rerun: guest shut down":             {machine(rerun, rerun), instance(succeeded), verdict{Delete: true, Printable: stopped}},
		"rerun: stays down":                  {machine(rerun, rerun), nil, verdict{Printable: stopped}},
		"rerun: failed":                      {machine(rerun, rerun), instance(failed), verdict{Delete: true, Requests: []request{startRequest}, Printable: crash}},
		"rerun: failed, asked already":       {machine(rerun, rerun, startRequest), instance(failed), verdict{Delete: true, Requests: []request{startRequest}, Printable: crash}},
		"rerun: stop":                        {machine(rerun, rerun, stopI), instance(running), verdict{Delete: true, Requests: []request{stopI}, Printable: stopping}},
		"rerun: failed while it was stopped": {machine(rerun, rerun, stopI), instance(failed), verdict{Delete: true, Requests: []request{stopI}, Printable: crash}},
		"rerun: restart":                     {machine(rerun, rerun, stopI, startRequest), nil, verdict{Create: true, Requests: []request{startRequest}, Printable: starting}},
		"rerun: deleted by somebody":         {machine(rerun, rerun), deleted(instance(running)), verdict{Printable: stopping}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := c.vm.DeepCopy()
			d := decide(input{Now: now, VM: c.vm, Instance: c.instance})
			got := verdict{d.Create, d.Delete, d.RunStrategy, d.Status.StateChangeRequests, d.Status.PrintableStatus}
			if len(got.Requests) == 0 {
				got.Requests = nil
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, c.vm); diff != "" {
				t.Errorf("the input was modified: %s", diff)
			}
			if d.Status.RunStrategy != runStrategyOf(c.vm) {
				t.Errorf("the strategy was not remembered: %q", d.Status.RunStrategy)
			}
		})
	}
}

func TestRunning_isAStrategy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		running *bool
		before  kubevirtv1.RunStrategy
		set     kubevirtv1.RunStrategy
		want    kubevirtv1.VirtualMachineSpec
	}{
		{ptr.To(true), kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyHalted, kubevirtv1.VirtualMachineSpec{Running: ptr.To(false)}},
		{ptr.To(false), kubevirtv1.RunStrategyHalted, kubevirtv1.RunStrategyAlways, kubevirtv1.VirtualMachineSpec{Running: ptr.To(true)}},
		{nil, kubevirtv1.RunStrategyHalted, kubevirtv1.RunStrategyAlways, kubevirtv1.VirtualMachineSpec{RunStrategy: ptr.To(kubevirtv1.RunStrategyAlways)}},
		{ptr.To(true), kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyManual, kubevirtv1.VirtualMachineSpec{RunStrategy: ptr.To(kubevirtv1.RunStrategyManual)}},
	} {
		vm := &kubevirtv1.VirtualMachine{Spec: kubevirtv1.VirtualMachineSpec{Running: c.running}}
		if got := runStrategyOf(vm); got != c.before {
			t.Errorf("running %v is %s", c.running, got)
		}
		vm.Spec.SetStrategy(c.set)
		if diff := cmp.Diff(c.want, vm.Spec); diff != "" {
			t.Error(diff)
		}
	}
	vm := &kubevirtv1.VirtualMachine{Spec: kubevirtv1.VirtualMachineSpec{Running: ptr.To(true), Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{}}}
	if d := decide(input{VM: vm}); !d.Create {
		t.Error("a machine that is to run is not started")
	}
}

func TestRunStrategy_absentIsHalted(t *testing.T) {
	t.Parallel()
	vm := machine("", "")
	vm.Spec.RunStrategy = nil
	if d := decide(input{Now: now, VM: vm}); d.Create || d.Status.PrintableStatus != kubevirtv1.VirtualMachineStopped {
		t.Errorf("%+v", d)
	}
}

func TestBackoff_growsAndIsForgottenAfterARun(t *testing.T) {
	t.Parallel()
	vm := machine(kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyAlways)
	clock := now
	for n, seconds := range []int{10, 20, 40, 80, 160, 300, 300} {
		want := time.Duration(seconds) * time.Second
		failed := instance(kubevirtv1.PhaseFailed)
		failed.UID = types.UID(string(rune('a' + n)))
		d := decide(input{Now: clock, VM: vm, Instance: failed})
		if !d.Delete || !d.CountedFailure || d.Status.StartFailure.ConsecutiveFailCount != n+1 {
			t.Fatalf("failure %d: %+v", n+1, d)
		}
		vm.Status = d.Status
		// The same instance is not counted twice when it is seen again after a restart of the controller.
		if again := decide(input{Now: clock.Add(time.Hour), VM: vm, Instance: failed}); again.CountedFailure || !again.Delete {
			t.Fatalf("failure %d counted twice: %+v", n+1, again)
		}
		d = decide(input{Now: clock, VM: vm})
		if d.Create || d.RequeueAfter != want || d.Status.PrintableStatus != kubevirtv1.VirtualMachineCrashLoopBackOff {
			t.Fatalf("after failure %d: %+v, want a wait of %s", n+1, d, want)
		}
		clock = clock.Add(want)
		if d = decide(input{Now: clock, VM: vm}); !d.Create {
			t.Fatalf("after the wait: %+v", d)
		}
	}
	if d := decide(input{Now: clock, VM: vm, Instance: instance(kubevirtv1.PhaseRunning)}); d.Status.StartFailure != nil {
		t.Errorf("a running guest did not reset the count: %+v", d.Status.StartFailure)
	}
}

func TestFailedStart_whatDoesNotCountAsOne(t *testing.T) {
	t.Parallel()
	crashed := instance(kubevirtv1.PhaseFailed)
	crashed.Status.PhaseTransitionTimestamps = []kubevirtv1.PhaseTransitionTimestamp{{Phase: kubevirtv1.PhaseRunning}}
	for name, in := range map[string]input{
		"a guest that ran":     {VM: machine(kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyAlways), Instance: crashed},
		"one that was deleted": {VM: machine(kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyAlways), Instance: deleted(instance(kubevirtv1.PhaseFailed))},
		"a manual start":       {VM: machine(kubevirtv1.RunStrategyManual, kubevirtv1.RunStrategyManual), Instance: instance(kubevirtv1.PhaseFailed)},
	} {
		in.Now = now
		if d := decide(in); d.CountedFailure || d.Status.StartFailure != nil {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestDeletedMachine(t *testing.T) {
	t.Parallel()
	vm := machine(kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyAlways)
	vm.DeletionTimestamp = &metav1.Time{Time: now}
	orphan := vm.DeepCopy()
	orphan.Finalizers = []string{metav1.FinalizerOrphanDependents}
	for name, c := range map[string]struct {
		in               input
		delete, released bool
	}{
		"its instance goes first":  {input{VM: vm, Instance: instance(kubevirtv1.PhaseRunning)}, true, false},
		"and is waited for":        {input{VM: vm, Instance: deleted(instance(kubevirtv1.PhaseRunning))}, false, false},
		"then it goes":             {input{VM: vm}, false, true},
		"orphaning keeps instance": {input{VM: orphan, Instance: instance(kubevirtv1.PhaseRunning)}, false, true},
	} {
		c.in.Now = now
		d := decide(c.in)
		if d.Delete != c.delete || d.Released != c.released || d.Create || d.Status.PrintableStatus != kubevirtv1.VirtualMachineTerminating {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
