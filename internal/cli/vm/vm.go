// Package vm has the commands of `varve vm`.
package vm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/power"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// NewCommand makes `varve vm`.
func NewCommand(s *resource.Session) *cobra.Command {
	return s.GroupCommand("vm", "List, start, stop, move, back up and restore virtual machines",
		`List, describe, start, stop, move, back up and restore virtual machines.

A machine's disks can be backed up incrementally when the column CBT (changed block
tracking) says Enabled. PendingRestart means that you must restart the machine first.`,
		`  varve vm list
  varve vm restart web --wait

  # The whole machine, and back
  varve vm backup web --wait
  varve vm backups
  varve vm restore web-20261129-020000 --keep-mac --wait`,
		[]string{"vms", "virtualmachine", "virtualmachines"},
		newListCommand(s), newDescribeCommand(s), newStartCommand(s), newStopCommand(s), newRestartCommand(s),
		newMigrateCommand(s),
		newBackupCommand(s), newBackupsCommand(s), newDescribeBackupCommand(s), newDeleteBackupCommand(s),
		newRestoreCommand(s))
}

func newListCommand(s *resource.Session) *cobra.Command {
	return s.ListCommand(resource.Listing{
		Short: "List virtual machines",
		Long: `List virtual machines with their state and the state of changed block tracking (CBT).

-o wide adds the run strategy, the node, the address, whether the guest agent answers,
and the backup that runs.`,
		Example: `  varve vm list

  # Everywhere, with node and address
  varve vm list -A -o wide

  # Machines with a label, for a script
  varve vm list -l backup=nightly -o name`,
		Noun:    "virtual machines",
		NewList: resource.NewVMs,
		Sort: func(list client.ObjectList) {
			slices.SortFunc(list.(*kubevirtv1.VirtualMachineList).Items, func(a, b kubevirtv1.VirtualMachine) int {
				return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
			})
		},
		Rows: func(ctx context.Context, c *cluster.Client, list client.ObjectList, wide bool, options []client.ListOption) (*output.Table, error) {
			return newTable(ctx, c, list, wide, options, s.Now())
		},
	})
}

func newTable(ctx context.Context, c *cluster.Client, list client.ObjectList, wide bool, options []client.ListOption, now time.Time) (*output.Table, error) {
	t := &output.Table{Header: []string{"NAME", "STATUS", "READY", "CBT", "AGE"}}
	instances := map[client.ObjectKey]*kubevirtv1.VirtualMachineInstance{}
	if wide {
		t.Header = append(t.Header, "RUN STRATEGY", "NODE", "IP", "AGENT", "BACKUP")
		// Instances need not have the labels that select their machines, so only the namespace narrows this list.
		var vmis kubevirtv1.VirtualMachineInstanceList
		if err := c.List(ctx, &vmis, namespaceOnly(options)...); err != nil {
			return nil, fmt.Errorf("list instances: %w", err)
		}
		for i := range vmis.Items {
			instances[client.ObjectKeyFromObject(&vmis.Items[i])] = &vmis.Items[i]
		}
	}
	for i := range list.(*kubevirtv1.VirtualMachineList).Items {
		vm := &list.(*kubevirtv1.VirtualMachineList).Items[i]
		row := []string{vm.Name, string(vm.Status.PrintableStatus), yesNo(vm.Status.Ready), trackingState(vm.Status.ChangedBlockTracking), human.Age(now, vm.CreationTimestamp.Time)}
		if wide {
			row = append(row, string(power.Strategy(vm)))
			row = append(row, instanceCells(instances[client.ObjectKeyFromObject(vm)])...)
		}
		t.Add(row...)
	}
	return t, nil
}

// instanceCells returns node, address, agent and backup of an instance, or empty cells without one.
func instanceCells(vmi *kubevirtv1.VirtualMachineInstance) []string {
	if vmi == nil {
		return []string{"", "", "", ""}
	}
	agent := findCondition(vmi.Status.Conditions, kubevirtv1.ConditionAgentConnected)
	return []string{vmi.Status.NodeName, firstAddress(vmi), yesNo(agent != nil && agent.Status == "True"), runningBackup(vmi.Status.ChangedBlockTracking)}
}

func namespaceOnly(options []client.ListOption) []client.ListOption {
	all := &client.ListOptions{}
	all.ApplyOptions(options)
	return []client.ListOption{client.InNamespace(all.Namespace)}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func firstAddress(vmi *kubevirtv1.VirtualMachineInstance) string {
	for _, i := range vmi.Status.Interfaces {
		if i.IP != "" {
			return i.IP
		}
	}
	return ""
}

func trackingState(cbt *kubevirtv1.ChangedBlockTrackingStatus) string {
	if cbt == nil {
		return ""
	}
	return string(cbt.State)
}

func runningBackup(cbt *kubevirtv1.ChangedBlockTrackingStatus) string {
	if cbt == nil || cbt.BackupStatus == nil {
		return ""
	}
	return cbt.BackupStatus.BackupName
}

func findCondition(all []kubevirtv1.Condition, kind kubevirtv1.ConditionType) *kubevirtv1.Condition {
	i := slices.IndexFunc(all, func(c kubevirtv1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// getVM reads a machine and its instance, which is nil if there is none.
func getVM(ctx context.Context, c *cluster.Client, name string) (*kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineInstance, error) {
	key := client.ObjectKey{Namespace: c.Namespace, Name: name}
	vm, vmi := &kubevirtv1.VirtualMachine{}, &kubevirtv1.VirtualMachineInstance{}
	if err := c.Get(ctx, key, vm); err != nil {
		return nil, nil, fmt.Errorf("get virtual machine %s: %w", key, err)
	}
	if err := c.Get(ctx, key, vmi); cluster.Classify(err) == cluster.NotFound {
		return vm, nil, nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("get instance %s: %w", key, err)
	}
	return vm, vmi, nil
}

// phaseSince returns when an instance entered its phase.
func phaseSince(vmi *kubevirtv1.VirtualMachineInstance) time.Time {
	for _, t := range slices.Backward(vmi.Status.PhaseTransitionTimestamps) {
		if t.Phase == vmi.Status.Phase {
			return t.PhaseTransitionTimestamp.Time
		}
	}
	return vmi.CreationTimestamp.Time
}
