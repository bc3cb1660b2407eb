// Package tracker has the commands of `varve tracker`.
package tracker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// NewCommand makes `varve tracker`.
func NewCommand(s *resource.Session) *cobra.Command {
	return s.GroupCommand("tracker", "Create, list, describe and delete trackers",
		`Create, list, describe and delete trackers.

A tracker remembers the last backup of a virtual machine, so that the next one holds only what
changed since. Use one tracker for each schedule or target.`,
		`  varve tracker create web --vm web
  varve tracker list`,
		[]string{"trackers", "vmbackuptracker", "vmbackuptrackers"},
		newCreateCommand(s), newListCommand(s), newDescribeCommand(s), newDeleteCommand(s))
}

func newCreateCommand(s *resource.Session) *cobra.Command {
	var vm, form string
	c := &cobra.Command{
		Use: "create NAME --vm VM", Short: "Create a tracker for a virtual machine",
		Long: `Create a tracker for a virtual machine in the same namespace. The machine need not exist yet.
The first backup with the tracker is full, the next ones are incremental.`,
		Example: `  varve tracker create web-nightly --vm web`,
		Args:    cmdline.ExactArgs(1, "a name for the tracker"), ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(*cobra.Command, []string) error {
			if vm == "" {
				return failure.Usage("--vm is required: the virtual machine to track")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			t := &backupv1.VirtualMachineBackupTracker{
				ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: args[0]},
				Spec:       backupv1.VirtualMachineBackupTrackerSpec{Source: *resource.VirtualMachineReference(vm)},
			}
			if err := c.Create(cmd.Context(), t); err != nil {
				return fmt.Errorf("create tracker %s/%s: %w", c.Namespace, t.Name, err)
			}
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, t)
			}
			return output.PrintDone(cmd.OutOrStdout(), t, "created")
		},
	}
	c.Flags().StringVar(&vm, "vm", "", "the virtual machine to track")
	s.CompleteFlag(c, "vm", resource.NewVMs)
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

func newListCommand(s *resource.Session) *cobra.Command {
	return s.ListCommand(resource.Listing{
		Short: "List trackers",
		Long: `List trackers with their machine and their checkpoint: the point in time that the next
backup starts from. A tracker without one makes a full backup next.

-o wide adds the backup that made the checkpoint and the disks that lost their base since.`,
		Example: `  varve tracker list
  varve tracker list -A -o wide`,
		Noun:    "trackers",
		NewList: resource.NewTrackers,
		Sort: func(list client.ObjectList) {
			slices.SortFunc(list.(*backupv1.VirtualMachineBackupTrackerList).Items, func(a, b backupv1.VirtualMachineBackupTracker) int {
				return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
			})
		},
		Rows: func(_ context.Context, _ *cluster.Client, list client.ObjectList, wide bool, _ []client.ListOption) (*output.Table, error) {
			return NewTable(list.(*backupv1.VirtualMachineBackupTrackerList).Items, s.Now(), wide), nil
		},
	})
}

// NewTable makes a table of trackers. wide asks for every column.
func NewTable(items []backupv1.VirtualMachineBackupTracker, now time.Time, wide bool) *output.Table {
	t := &output.Table{Header: []string{"NAME", "VM", "CHECKPOINT", "TAKEN", "DISKS", "AGE"}}
	if wide {
		t.Header = append(t.Header, "BACKUP", "DISCARDED")
	}
	for i := range items {
		tr := &items[i]
		c := tr.Status.LatestCheckpoint
		if c == nil {
			c = &backupv1.Checkpoint{}
		}
		row := []string{tr.Name, tr.Spec.Source.Name, c.Name, human.Age(now, c.CreationTime.Time), strings.Join(c.Disks, ","), human.Age(now, tr.CreationTimestamp.Time)}
		if wide {
			row = append(row, c.BackupName, discardedNames(tr.Status.Discarded))
		}
		t.Add(row...)
	}
	return t
}

func discardedNames(all []backupv1.DiscardedDisk) string {
	var names []string
	for _, d := range all {
		names = append(names, d.Volume+":"+string(d.Reason))
	}
	return strings.Join(names, ",")
}

func newDescribeCommand(s *resource.Session) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe NAME", Short: "Show a tracker with its checkpoint and the disks that lost their base",
		Long: `Show a tracker: its machine, the checkpoint that the next backup starts from, the disks in
it, the disks that lost their base and why, and the events.`,
		Example: `  varve tracker describe web`,
		Args:    cmdline.ExactArgs(1, "the name of a tracker"), ValidArgsFunction: s.CompleteArgs(resource.NewTrackers, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			t := &backupv1.VirtualMachineBackupTracker{}
			key := client.ObjectKey{Namespace: c.Namespace, Name: args[0]}
			if err := c.Get(cmd.Context(), key, t); err != nil {
				return fmt.Errorf("get tracker %s: %w", key, err)
			}
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, t)
			}
			list, err := resource.ReadEvents(cmd.Context(), c, t.Namespace, t.UID)
			if err != nil {
				return err
			}
			p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
			writeTracker(p, t)
			resource.WriteEvents(p, list)
			return p.Err
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

func writeTracker(p *output.Page, t *backupv1.VirtualMachineBackupTracker) {
	p.Fields("Name", t.Name, "Namespace", t.Namespace, "Created", p.Moment(t.CreationTimestamp.Time), "Virtual machine", t.Spec.Source.Name)
	if c := t.Status.LatestCheckpoint; c != nil {
		p.Fields("Checkpoint", c.Name, "Taken", p.Moment(c.CreationTime.Time), "Made by backup", c.BackupName, "Disks", strings.Join(c.Disks, ", "), "Next backup", "incremental of these disks")
	} else {
		p.Fields("Checkpoint", "none", "Next backup", "full")
	}
	lost := &output.Table{Header: []string{"DISK", "REASON", "MESSAGE"}}
	for _, d := range t.Status.Discarded {
		lost.Add(d.Volume, string(d.Reason), d.Message)
	}
	p.Section("Disks whose next backup is full", lost, "")
}

func newDeleteCommand(s *resource.Session) *cobra.Command {
	return s.DeleteCommand(resource.Deletion{
		Noun: "tracker", Argument: "the name of a tracker",
		Short: "Delete trackers",
		Long: `Delete trackers. Backups that were made with them stay and can be restored. The first backup
with another tracker is full. A tracker that a running backup uses is deleted when that backup
ends.`,
		Example: `  varve tracker delete web --wait`,
		Object:  func() client.Object { return &backupv1.VirtualMachineBackupTracker{} }, NewList: resource.NewTrackers,
		State: func(o client.Object) (string, string) {
			return "in use", "finalizers " + strings.Join(o.GetFinalizers(), ", ")
		},
	})
}
