package vm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/power"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/layout"
)

// powerTimeout is the default of --timeout, enough for a guest's grace period and its boot.
const powerTimeout = 10 * time.Minute

type decision func(*kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineInstance) (power.Change, error)

func newStartCommand(s *resource.Session) *cobra.Command {
	var w resource.Waiting
	c := &cobra.Command{
		Use: "start NAME", Short: "Start a virtual machine",
		Long: `Start a virtual machine. One that runs already is left alone.

Run strategy Halted becomes Always. With Manual and RerunOnFailure the start is requested
in the machine's status, or of KubeVirt if that runs the machine, and the strategy stays.`,
		Example: `  varve vm start web

  # Until the guest runs, or two minutes have passed
  varve vm start web --wait --timeout 2m`,
		Args: cmdline.ExactArgs(1, "the name of a virtual machine"), ValidArgsFunction: s.CompleteArgs(resource.NewVMs, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			decide := func(vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance) (power.Change, error) {
				return power.Start(vm, vmi), nil
			}
			c, _, err := changePower(s, cmd, args[0], decide, false)
			if err != nil || !w.Wait {
				return err
			}
			return w.Run(cmd.Context(), s, "virtual machine "+args[0]+" runs", "vm describe "+args[0], untilReady(c, args[0]))
		},
	}
	w.AddFlags(c, "the guest runs", powerTimeout)
	return c
}

func newStopCommand(s *resource.Session) *cobra.Command {
	var w resource.Waiting
	var force bool
	c := &cobra.Command{
		Use: "stop NAME", Short: "Stop a virtual machine",
		Long: `Stop a virtual machine: its guest is asked to shut down, and killed when its grace period
is over. One that does not run is left alone.

Run strategy Always becomes Halted. With Manual and RerunOnFailure the stop is requested in
the machine's status, or of KubeVirt if that runs the machine, and the strategy stays.

A stop waits for a running backup to end; --wait shows that. --force does not wait: the
backup fails, and the next one starts from the same base. A machine that KubeVirt runs
stops at once: its backup fails.`,
		Example: `  varve vm stop web --wait

  # At once, although a backup runs
  varve vm stop web --force`,
		Args: cmdline.ExactArgs(1, "the name of a virtual machine"), ValidArgsFunction: s.CompleteArgs(resource.NewVMs, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			decide := func(vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance) (power.Change, error) {
				return power.Stop(vm, vmi), nil
			}
			c, vmi, err := changePower(s, cmd, args[0], decide, force)
			if err != nil || !w.Wait || vmi == nil {
				return err
			}
			return w.Run(cmd.Context(), s, "virtual machine "+args[0]+" has stopped", "vm describe "+args[0], untilStopped(c, vmi))
		},
	}
	c.Flags().BoolVar(&force, "force", false, "do not wait for a running backup: it fails")
	w.AddFlags(c, "the guest is gone", powerTimeout)
	return c
}

func newRestartCommand(s *resource.Session) *cobra.Command {
	var w resource.Waiting
	var force bool
	c := &cobra.Command{
		Use: "restart NAME", Short: "Restart a virtual machine",
		Long: `Restart a virtual machine: its guest is shut down, and a new instance is started. Changes of
the machine's spec and of changed block tracking (PendingRestart) apply at a restart.

A restart waits for a running backup to end; --wait shows that, --force does not wait. A
machine that KubeVirt runs restarts at once: its backup fails.`,
		Example: `  # Apply a change of changed block tracking, and wait until it is done
  varve vm restart web --wait`,
		Args: cmdline.ExactArgs(1, "the name of a virtual machine"), ValidArgsFunction: s.CompleteArgs(resource.NewVMs, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, vmi, err := changePower(s, cmd, args[0], power.Restart, force)
			var notRunning *power.NotRunningError
			if errors.As(err, &notRunning) {
				return failure.New(s.CommandHint("vm start "+args[0])+" starts it", "%w", err)
			}
			if err != nil || !w.Wait {
				return err
			}
			return w.Run(cmd.Context(), s, "virtual machine "+args[0]+" runs again", "vm describe "+args[0], untilReplaced(c, vmi))
		},
	}
	c.Flags().BoolVar(&force, "force", false, "do not wait for a running backup: it fails")
	w.AddFlags(c, "the new guest runs", powerTimeout)
	return c
}

// changePower reads, decides and writes. It tries again if somebody else wrote in between. It returns the instance that
// it saw.
func changePower(s *resource.Session, cmd *cobra.Command, name string, decide decision, force bool) (*cluster.Client, *kubevirtv1.VirtualMachineInstance, error) {
	c, err := s.Connect()
	if err != nil {
		return nil, nil, err
	}
	if force {
		if err := checkForce(cmd.Context(), c); err != nil {
			return nil, nil, err
		}
	}
	const tries = 5
	for try := 1; ; try++ {
		vm, vmi, err := getVM(cmd.Context(), c, name)
		if err != nil {
			return nil, nil, err
		}
		change, err := decide(vm, vmi)
		if err != nil {
			return nil, nil, err
		}
		if force && vmi != nil {
			err = forceStop(cmd.Context(), c, vmi)
		}
		if err == nil {
			err = applyPower(cmd.Context(), c, vm, change, cmd.Name())
		}
		if cluster.Classify(err) == cluster.Conflict && try < tries {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("change virtual machine %s/%s: %w", c.Namespace, name, err)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "virtual machine %s %s\n", name, change.Note)
		return c, vmi, err
	}
}

// checkForce refuses what only Varve's own runtime knows.
func checkForce(ctx context.Context, c *cluster.Client) error {
	kubevirt, err := c.RunsKubeVirt(ctx)
	if err != nil || !kubevirt {
		return err
	}
	return failure.New("leave it out: KubeVirt does not wait for a backup",
		"--force is for machines of Varve's own runtime, and KubeVirt runs those of this cluster")
}

// forceStop keeps the instance's stop from waiting for a backup. It must come before the stop, so that the stop never
// waits.
func forceStop(ctx context.Context, c *cluster.Client, vmi *kubevirtv1.VirtualMachineInstance) error {
	before := vmi.DeepCopy()
	if vmi.Annotations == nil {
		vmi.Annotations = map[string]string{}
	}
	vmi.Annotations[layout.AnnotationForceStop] = "true"
	if err := c.Patch(ctx, vmi, client.MergeFrom(before)); cluster.Classify(err) != cluster.NotFound && err != nil {
		return fmt.Errorf("mark instance %s: %w", vmi.Name, err)
	}
	return nil
}

// applyPower writes only what changes, and only over the version of the machine that was read. What is requested in the
// status of a machine is asked of KubeVirt by a subresource, if that runs it: action is its name.
func applyPower(
	ctx context.Context, c *cluster.Client, vm *kubevirtv1.VirtualMachine, change power.Change, action string,
) error {
	before := vm.DeepCopy()
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if change.RunStrategy != "" {
		vm.Spec.SetStrategy(change.RunStrategy)
		return c.Patch(ctx, vm, patch)
	}
	if !change.SetRequests {
		return nil
	}
	if kubevirt, err := c.RunsKubeVirt(ctx); err != nil {
		return err
	} else if kubevirt {
		return c.ChangePower(ctx, vm.Name, action)
	}
	vm.Status.StateChangeRequests = change.Requests
	return c.Status().Patch(ctx, vm, patch)
}

// untilReady waits until the machine's guest runs.
func untilReady(c *cluster.Client, name string) resource.WaitFunc {
	key := client.ObjectKey{Namespace: c.Namespace, Name: name}
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, key, &kubevirtv1.VirtualMachine{}, resource.NewVMs(), func(vm *kubevirtv1.VirtualMachine, exists bool) (bool, error) {
			if !exists {
				return false, failure.New("", "virtual machine %s was deleted", name)
			}
			show(newStartReport(vm))
			return vm.Status.Ready, nil
		})
	}
}

// untilStopped waits until this instance has ended.
func untilStopped(c *cluster.Client, old *kubevirtv1.VirtualMachineInstance) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(old), &kubevirtv1.VirtualMachineInstance{}, &kubevirtv1.VirtualMachineInstanceList{},
			func(vmi *kubevirtv1.VirtualMachineInstance, exists bool) (bool, error) {
				if !exists || vmi.UID != old.UID || vmi.Status.Phase.Final() {
					show(progress.Report{Name: old.Name, Phase: "Stopped"})
					return true, nil
				}
				show(newStopReport(vmi))
				return false, nil
			})
	}
}

// untilReplaced waits until an instance other than this one runs.
func untilReplaced(c *cluster.Client, old *kubevirtv1.VirtualMachineInstance) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(old), &kubevirtv1.VirtualMachineInstance{}, &kubevirtv1.VirtualMachineInstanceList{},
			func(vmi *kubevirtv1.VirtualMachineInstance, exists bool) (bool, error) {
				switch {
				case !exists:
					show(progress.Report{Name: old.Name, Phase: "Stopped", Message: "the new instance comes next"})
					return false, nil
				case vmi.UID == old.UID:
					show(newStopReport(vmi))
					return false, nil
				}
				show(progress.Report{Name: vmi.Name, Phase: string(vmi.Status.Phase), Message: falseCondition(vmi.Status.Conditions, kubevirtv1.ConditionReady)})
				ready := findCondition(vmi.Status.Conditions, kubevirtv1.ConditionReady)
				return vmi.Status.Phase == kubevirtv1.PhaseRunning && ready != nil && ready.Status == "True", nil
			})
	}
}

// newStartReport reports a machine that is being started. Why its last start has failed counts for more than that it is
// not ready.
func newStartReport(vm *kubevirtv1.VirtualMachine) progress.Report {
	r := progress.Report{
		Name: vm.Name, Phase: string(vm.Status.PrintableStatus),
		Message: falseCondition(vm.Status.Conditions, kubevirtv1.ConditionReady),
	}
	if c := findCondition(vm.Status.Conditions, kubevirtv1.ConditionFailure); !vm.Status.Ready && c != nil &&
		c.Status == corev1.ConditionTrue {
		r.Message = c.Reason + ": " + c.Message
	}
	return r
}

// newStopReport reports an instance that is being stopped and, if the stop is delayed, what it waits for.
func newStopReport(vmi *kubevirtv1.VirtualMachineInstance) progress.Report {
	r := progress.Report{Name: vmi.Name, Phase: "Stopping"}
	if delayed := findCondition(vmi.Status.Conditions, kubevirtv1.ConditionStopDelayed); delayed != nil && delayed.Status == "True" {
		r.Phase, r.Message = "StopDelayed", delayed.Message
		if r.Message == "" {
			r.Message = "a backup is running; --force ends it"
		}
	}
	return r
}

// falseCondition returns the message of a condition that does not hold.
func falseCondition(all []kubevirtv1.Condition, kind kubevirtv1.ConditionType) string {
	if c := findCondition(all, kind); c != nil && c.Status != "True" {
		return c.Message
	}
	return ""
}
