package vm

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
)

func newDescribeBackupCommand(s *resource.Session) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe-backup NAME", Short: "Show the backup of a whole virtual machine with its disks",
		Long: `Show the backup of a whole virtual machine: what it waits for or why it failed, where it is, each
disk with its size, how much of it was new, and why it was read in full, the volumes that are left
out, how consistent a snapshot is, the restores that read it, and recent events.`,
		Example: `  varve vm describe-backup web-20261129-020000

  # The API object
  varve vm describe-backup web-20261129-020000 -o yaml`,
		Args:              cmdline.ExactArgs(1, "the name of a machine backup"),
		ValidArgsFunction: s.CompleteArgs(machinebackup.NewList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			b := &harvesterv1.VirtualMachineBackup{}
			key := client.ObjectKey{Namespace: c.Namespace, Name: args[0]}
			if err := c.Get(cmd.Context(), key, b); err != nil {
				return fmt.Errorf("get machine backup %s: %w", key, err)
			}
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, b)
			}
			restores, err := listRestores(cmd.Context(), c, b)
			if err != nil {
				return err
			}
			events, err := resource.ReadEvents(cmd.Context(), c, b.Namespace, b.UID)
			if err != nil {
				return err
			}
			p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
			writeBackup(p, b, restores)
			resource.WriteEvents(p, events)
			return p.Err
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

// listRestores returns the restores of a backup in its own namespace.
func listRestores(ctx context.Context, c *cluster.Client, b *harvesterv1.VirtualMachineBackup) ([]harvesterv1.VirtualMachineRestore, error) {
	var list harvesterv1.VirtualMachineRestoreList
	if err := c.List(ctx, &list, client.InNamespace(b.Namespace)); err != nil {
		return nil, fmt.Errorf("list machine restores: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(r harvesterv1.VirtualMachineRestore) bool {
		other := r.Status.BackupUID != "" && r.Status.BackupUID != b.UID // of one that had the name
		return other || r.Spec.VirtualMachineBackupName != b.Name || r.Spec.VirtualMachineBackupNamespace != b.Namespace
	}), nil
}

func writeBackup(p *output.Page, b *harvesterv1.VirtualMachineBackup, restores []harvesterv1.VirtualMachineRestore) {
	size, changed := machinebackup.StoredBytes(b)
	location, state := "", "not running"
	if l := b.Status.Location; l != nil {
		location = l.Namespace + "/" + l.Name
	}
	if b.Status.Group == "" || b.Status.NodeName != "" {
		state = ""
	}
	message := machinebackup.Message(b.Status.Conditions)
	if b.IsReady() && b.DeletionTimestamp == nil {
		message = ""
	}
	changedText := human.Bytes(changed)
	if b.Spec.Type == harvesterv1.Snapshot {
		changedText = ""
	}
	p.Fields(
		"Name", b.Name,
		"Namespace", b.Namespace,
		"Created", p.Moment(b.CreationTimestamp.Time),
		"Machine", b.Spec.Source.Name,
		"Machine was", state,
		"Type", string(b.Spec.Type),
		"Location", location,
		"State", machinebackup.Phase(b),
		"Message", message,
		"Progress", fmt.Sprintf("%d%%", b.Status.Progress),
		"Ready since", p.Timestamp(b.Status.CreationTime),
		"Size", human.Bytes(size),
		"New or changed", changedText,
		"Made again", b.Status.MadeAgain,
		"Not tracked", machinebackup.DescribeUntracked(b),
		"Consistency", machinebackup.DescribeConsistency(b),
	)
	writeBackedUpDisks(p, b)
	left := &output.Table{Header: []string{"VOLUME", "REASON", "MESSAGE"}}
	for _, v := range b.Status.ExcludedVolumes {
		left.Add(v.Name, string(v.Reason), v.Message)
	}
	p.Section("Left out", left, "none")
	read := &output.Table{Header: []string{"NAME", "VM", "STATE", "AGE"}}
	for i := range restores {
		r := &restores[i]
		read.Add(r.Name, r.Spec.Target.Name, phaseOfRestore(r), p.Age(r.CreationTimestamp.Time))
	}
	p.Section("Restores", read, "none in this namespace")
}

func writeBackedUpDisks(p *output.Page, b *harvesterv1.VirtualMachineBackup) {
	at := "DATA UPLOAD"
	if b.Spec.Type == harvesterv1.Snapshot {
		at = "VOLUME SNAPSHOT"
	}
	t := &output.Table{Header: []string{"VOLUME", "CLAIM", "SIZE", "CHANGED", "FULL BECAUSE", "STATE", at}}
	for i := range b.Status.VolumeBackups {
		v := &b.Status.VolumeBackups[i]
		state := fmt.Sprintf("%d%%", v.Progress)
		switch {
		case v.Error != nil:
			state = "failed: " + ptr.Deref(v.Error.Message, "")
		case ptr.Deref(v.ReadyToUse, false):
			state = "ready"
		}
		changed := human.Bytes(v.ChangedBytes)
		if b.Spec.Type == harvesterv1.Snapshot {
			changed = ""
		}
		t.Add(v.VolumeName, v.PersistentVolumeClaim.ObjectMeta.Name, human.Bytes(v.VolumeSize), changed, v.FullReason,
			state, cmp.Or(ptr.Deref(v.VolumeSnapshotName, ""), v.DataUpload))
	}
	p.Section("Disks", t, "none are planned yet")
}

func phaseOfRestore(r *harvesterv1.VirtualMachineRestore) string {
	switch {
	case r.DeletionTimestamp != nil:
		return "Deleting"
	case r.IsComplete():
		return "Complete"
	case r.HasFailed():
		return "Failed"
	}
	return "Restoring"
}

func newDeleteBackupCommand(s *resource.Session) *cobra.Command {
	c := s.DeleteCommand(resource.Deletion{
		Noun: "machine backup", Argument: "the name of a machine backup", Describe: "vm describe-backup",
		Short: "Delete backups of whole virtual machines",
		Long: `Delete backups of whole virtual machines with what they have stored: restore points in the
location, or snapshots in the storage. Other backups keep all that they need. A backup that runs
is canceled. A restore that reads a backup holds it until it ends. If the location does not
answer for 2 minutes, the backup goes, and its data uploads wait for the location alone.

A backup that was found in a location, and not made here, goes as an object alone.`,
		Example: `  varve vm delete-backup web-20261129-020000 --wait`,
		Object:  func() client.Object { return &harvesterv1.VirtualMachineBackup{} }, NewList: machinebackup.NewList,
		State: func(o client.Object) (string, string) {
			b := o.(*harvesterv1.VirtualMachineBackup)
			return machinebackup.Phase(b), machinebackup.Message(b.Status.Conditions)
		},
		Gone: func(o client.Object) string { return describeGone(o.(*harvesterv1.VirtualMachineBackup)) },
	})
	c.Use, c.Aliases = "delete-backup NAME...", nil
	return c
}

// describeGone says what went with a backup, as it was before.
func describeGone(b *harvesterv1.VirtualMachineBackup) string {
	var points, snapshots int
	for _, v := range b.Status.VolumeBackups {
		switch {
		case v.VolumeSnapshotName != nil:
			snapshots++
		case v.SnapshotID != "" && v.DataUpload != "":
			points++
		}
	}
	text := "machine backup " + b.Name + " is gone"
	switch {
	case b.Spec.Type == harvesterv1.Snapshot && snapshots > 0:
		return text + ", with its " + human.Count(snapshots, "snapshot")
	case b.Status.Group == "" && len(b.Status.VolumeBackups) > 0:
		return text + "; what the location has stays"
	case points > 0:
		return text + ", with its " + human.Count(points, "restore point")
	}
	return text + "; it had stored nothing"
}
