// Package backup has the commands of `varve backup`.
package backup

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// NewCommand makes `varve backup`.
func NewCommand(s *resource.Session, repo *repoaccess.Session) *cobra.Command {
	return s.GroupCommand("backup", "Create, list, describe, fetch and delete backups",
		`Create, list, describe, fetch and delete backups of virtual machines.

A backup writes one qcow2 file per disk and a manifest to a directory on a claim. In pull
mode, it offers the disks until clients have fetched them. With a tracker, it holds what
changed since the tracker's last backup; without one, it is full.`,
		`  varve backup create --tracker web --pvc backups --wait
  varve backup list
  varve backup describe web-x7k2p`,
		[]string{"backups", "vmbackup", "vmbackups"},
		newCreateCommand(s), newListCommand(s), newDescribeCommand(s), newPullCommand(s, repo), newDeleteCommand(s))
}

func newListCommand(s *resource.Session) *cobra.Command {
	return s.ListCommand(resource.Listing{
		Short: "List backups",
		Long: `List backups, oldest first: the machine, the phase, whether the backup is full or
incremental, and how much was written to the target.

-o wide adds the target claim, the checkpoint and the message.`,
		Example: `  varve backup list

  # Follow those that run
  varve backup list --watch

  # What is wrong with the one that waits?
  varve backup list -o wide

  # Names of all that failed
  varve backup list -o json | jq -r '.items[] | select(.status.phase == "Failed") | .metadata.name'`,
		Noun:    "backups",
		NewList: resource.NewBackups,
		Sort: func(list client.ObjectList) {
			slices.SortStableFunc(list.(*backupv1.VirtualMachineBackupList).Items, func(a, b backupv1.VirtualMachineBackup) int {
				return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
			})
		},
		Rows: func(_ context.Context, _ *cluster.Client, list client.ObjectList, wide bool, _ []client.ListOption) (*output.Table, error) {
			return NewTable(list.(*backupv1.VirtualMachineBackupList).Items, s.Now(), wide), nil
		},
	})
}

// NewTable makes a table of backups. wide asks for every column.
func NewTable(items []backupv1.VirtualMachineBackup, now time.Time, wide bool) *output.Table {
	t := &output.Table{Header: []string{"NAME", "VM", "PHASE", "TYPE", "PROGRESS", "MOVED", "TOOK", "AGE"}}
	if wide {
		t.Header = append(t.Header, "TARGET", "CHECKPOINT", "MESSAGE")
	}
	for i := range items {
		b := &items[i]
		row := []string{b.Name, sourceOf(b), phaseOf(b), string(b.Status.BackupType), percentOf(b), movedOf(b), tookOf(b, now), human.Age(now, b.CreationTimestamp.Time)}
		if wide {
			row = append(row, b.Spec.PVCName, b.Status.CheckpointName, b.Status.Message)
		}
		t.Add(row...)
	}
	return t
}

func sourceOf(b *backupv1.VirtualMachineBackup) string {
	if b.Status.SourceName == "" {
		return b.Spec.MachineName()
	}
	return b.Status.SourceName
}

// phaseOf returns the phase. A backup that no controller has seen yet is pending.
func phaseOf(b *backupv1.VirtualMachineBackup) string {
	if b.Status.Phase == "" {
		return string(backupv1.BackupPending)
	}
	return string(b.Status.Phase)
}

func percentOf(b *backupv1.VirtualMachineBackup) string {
	if b.Status.Progress == nil {
		return ""
	}
	return b.Status.Progress.Percent
}

// movedOf returns what was written. Zero counts only once the backup is done.
func movedOf(b *backupv1.VirtualMachineBackup) string {
	if b.Status.MovedBytes == 0 && b.Status.Phase != backupv1.BackupDone {
		return ""
	}
	return human.Bytes(b.Status.MovedBytes)
}

// tookOf returns the time from the backup's point in time to its end, or to now.
func tookOf(b *backupv1.VirtualMachineBackup, now time.Time) string {
	switch {
	case b.Status.StartTimestamp == nil:
		return ""
	case b.Status.CompletionTimestamp != nil:
		return human.Span(b.Status.CompletionTimestamp.Sub(b.Status.StartTimestamp.Time))
	default:
		return human.Span(now.Sub(b.Status.StartTimestamp.Time))
	}
}

func newDeleteCommand(s *resource.Session) *cobra.Command {
	return s.DeleteCommand(resource.Deletion{
		Noun: "backup", Argument: "the name of a backup",
		Short: "Delete backups",
		Long: `Delete backup objects. A running backup is aborted: its partial files are removed, and the next
backup starts from the same base. The files of a finished backup stay on the claim, because
later incremental backups need them.

A backup in pull mode that is Ready is not aborted: deleting it says that its data was read,
and its tracker moves.`,
		Example: `  # Abort a backup, and wait until its files are removed
  varve backup delete web-x7k2p --wait`,
		Object: func() client.Object { return &backupv1.VirtualMachineBackup{} }, NewList: resource.NewBackups,
		State: func(o client.Object) (string, string) {
			b := o.(*backupv1.VirtualMachineBackup)
			return phaseOf(b), b.Status.Message
		},
	})
}

// getBackup reads a backup in the selected namespace.
func getBackup(ctx context.Context, c *cluster.Client, name string) (*backupv1.VirtualMachineBackup, error) {
	b := &backupv1.VirtualMachineBackup{}
	key := client.ObjectKey{Namespace: c.Namespace, Name: name}
	if err := c.Get(ctx, key, b); err != nil {
		return nil, fmt.Errorf("get backup %s: %w", key, err)
	}
	return b, nil
}
