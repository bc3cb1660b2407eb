package power_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/power"
)

func machine(strategy kubevirtv1.RunStrategy, requests ...kubevirtv1.StateChangeRequest) *kubevirtv1.VirtualMachine {
	vm := &kubevirtv1.VirtualMachine{Status: kubevirtv1.VirtualMachineStatus{StateChangeRequests: requests}}
	vm.Name = "web"
	if strategy != "" {
		vm.Spec.RunStrategy = &strategy
	}
	return vm
}

func instance(phase kubevirtv1.Phase, deleting bool) *kubevirtv1.VirtualMachineInstance {
	vmi := &kubevirtv1.VirtualMachineInstance{Status: kubevirtv1.VirtualMachineInstanceStatus{Phase: phase}}
	vmi.UID = "u1"
	if deleting {
		now := metav1.Now()
		vmi.DeletionTimestamp = &now
	}
	return vmi
}

func stop(uid types.UID) kubevirtv1.StateChangeRequest {
	return kubevirtv1.StateChangeRequest{Action: kubevirtv1.StopRequest, UID: &uid}
}

var (
	start = kubevirtv1.StateChangeRequest{Action: kubevirtv1.StartRequest}
	none  *kubevirtv1.VirtualMachineInstance
)

const (
	always = kubevirtv1.RunStrategyAlways
	halted = kubevirtv1.RunStrategyHalted
	manual = kubevirtv1.RunStrategyManual
	rerun  = kubevirtv1.RunStrategyRerunOnFailure
)

func requests(note string, r ...kubevirtv1.StateChangeRequest) power.Change {
	return power.Change{Requests: r, SetRequests: true, Note: note}
}

func TestStart(t *testing.T) {
	t.Parallel()
	running, stopping, ended := instance(kubevirtv1.PhaseRunning, false), instance(kubevirtv1.PhaseRunning, true), instance(kubevirtv1.PhaseSucceeded, false)
	for name, c := range map[string]struct {
		vm   *kubevirtv1.VirtualMachine
		vmi  *kubevirtv1.VirtualMachineInstance
		want power.Change
	}{
		"halted":                      {machine(halted), none, power.Change{RunStrategy: always, Note: "starts"}},
		"default is halted":           {machine(""), none, power.Change{RunStrategy: always, Note: "starts"}},
		"halted and still stopping":   {machine(halted), stopping, power.Change{RunStrategy: always, Note: "starts"}},
		"always, running":             {machine(always), running, power.Change{Note: "is already running"}},
		"always, between instances":   {machine(always), none, power.Change{Note: "is already being started"}},
		"manual":                      {machine(manual), none, requests("starts", start)},
		"rerun, ended":                {machine(rerun), ended, requests("starts", start)},
		"manual, running":             {machine(manual), running, power.Change{Note: "is already running"}},
		"manual, stopping":            {machine(manual), stopping, requests("starts", start)},
		"manual, stop asked for":      {machine(manual, stop("u1")), running, requests("starts", stop("u1"), start)},
		"manual, stop of another one": {machine(manual, stop("u0")), none, requests("starts", start)},
		"manual, start asked for":     {machine(manual, start), none, power.Change{Note: "is already being started"}},
	} {
		if diff := cmp.Diff(c.want, power.Start(c.vm, c.vmi)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	running, stopping, ended := instance(kubevirtv1.PhaseRunning, false), instance(kubevirtv1.PhaseRunning, true), instance(kubevirtv1.PhaseFailed, false)
	for name, c := range map[string]struct {
		vm   *kubevirtv1.VirtualMachine
		vmi  *kubevirtv1.VirtualMachineInstance
		want power.Change
	}{
		"always":                    {machine(always), running, power.Change{RunStrategy: halted, Note: "stops"}},
		"always, between instances": {machine(always), none, power.Change{RunStrategy: halted, Note: "stops"}},
		"halted":                    {machine(halted), none, power.Change{Note: "is already stopped"}},
		"halted, stopping":          {machine(halted), stopping, power.Change{Note: "is already being stopped"}},
		"manual, running":           {machine(manual), running, requests("stops", stop("u1"))},
		"rerun, running":            {machine(rerun), running, requests("stops", stop("u1"))},
		"manual, asked for already": {machine(manual, stop("u1")), running, power.Change{Note: "is already being stopped"}},
		"manual, restart pending":   {machine(manual, stop("u1"), start), running, requests("stops", stop("u1"))},
		"manual, stopping":          {machine(manual), stopping, power.Change{Note: "is already being stopped"}},
		"manual, start pending":     {machine(manual, start), none, requests("stops")},
		"manual, ended":             {machine(manual), ended, power.Change{Note: "is already stopped"}},
	} {
		if diff := cmp.Diff(c.want, power.Stop(c.vm, c.vmi)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	running := instance(kubevirtv1.PhaseRunning, false)
	for _, strategy := range []kubevirtv1.RunStrategy{always, manual, rerun} {
		got, err := power.Restart(machine(strategy), running)
		if err != nil {
			t.Fatalf("%s: %v", strategy, err)
		}
		if diff := cmp.Diff(requests("restarts", stop("u1"), start), got); diff != "" {
			t.Errorf("%s: %s", strategy, diff)
		}
	}
	for name, c := range map[string]struct {
		vm  *kubevirtv1.VirtualMachine
		vmi *kubevirtv1.VirtualMachineInstance
	}{
		"no instance": {machine(manual), none},
		"stopping":    {machine(always), instance(kubevirtv1.PhaseRunning, true)},
		"ended":       {machine(rerun), instance(kubevirtv1.PhaseFailed, false)},
		"halted":      {machine(halted), running},
	} {
		var notRunning *power.NotRunningError
		if _, err := power.Restart(c.vm, c.vmi); !errors.As(err, &notRunning) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}
