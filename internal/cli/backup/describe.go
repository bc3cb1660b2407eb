package backup

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
)

func newDescribeCommand(s *resource.Session) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe NAME", Short: "Show a backup with its disks, files, conditions and events",
		Long: `Show a backup: how it went or what it waits for, for each disk whether it is full or
incremental and why, the bytes that were written, the files, the conditions and the events.`,
		Example: `  varve backup describe web-x7k2p

  # The API object
  varve backup describe web-x7k2p -o json`,
		Args: cmdline.ExactArgs(1, "the name of a backup"), ValidArgsFunction: s.CompleteArgs(resource.NewBackups, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			b, err := getBackup(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, b)
			}
			list, err := resource.ReadEvents(cmd.Context(), c, b.Namespace, b.UID)
			if err != nil {
				return err
			}
			p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
			writeBackup(p, b)
			resource.WriteEvents(p, list)
			return p.Err
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

func writeBackup(p *output.Page, b *backupv1.VirtualMachineBackup) {
	p.Fields(
		"Name", b.Name,
		"Namespace", b.Namespace,
		"Created", p.Moment(b.CreationTimestamp.Time),
		"Labels", output.FormatLabels(b.Labels),
		"Virtual machine", sourceOf(b),
		"Tracker", b.Spec.TrackerName(),
		"Options", backupOptions(b),
		"Phase", phaseOf(b),
		"Reason", b.Status.Reason,
		"Message", b.Status.Message,
		"Progress", progressOf(b),
		"Type", string(b.Status.BackupType),
		"Checkpoint", b.Status.CheckpointName,
		"Base", baseOf(b),
		"Target", formatTarget(b),
		"Node", b.Status.NodeName,
		"Point in time", p.Timestamp(b.Status.StartTimestamp),
		"Completed", p.Timestamp(b.Status.CompletionTimestamp),
		"Took", tookOf(b, p.Now),
		"Copied in", formatMillis(&b.Status.CopyMillis),
		"Hashed in", formatMillis(&b.Status.SealMillis),
		"Frozen", formatMillis(b.Status.FrozenMillis),
		"Moved", movedOf(b),
	)
	writeVolumes(p, b.Status.IncludedVolumes)
	t := &output.Table{Header: []string{"CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"}}
	for _, c := range b.Status.Conditions {
		t.Add(c.Type, string(c.Status), p.Age(c.LastTransitionTime.Time), c.Reason, c.Message)
	}
	p.Section("Conditions", t, "none")
}

func writeVolumes(p *output.Page, all []backupv1.IncludedVolume) {
	sizes := &output.Table{Header: []string{"DISK", "TYPE", "WHY FULL", "SIZE", "MOVED"}}
	files := &output.Table{Header: []string{"FILE", "SHA-256"}}
	for _, v := range all {
		sizes.Add(v.Name, string(v.Type), backupstate.WhyFull(v.FullReason), human.Bytes(v.VirtualBytes), human.Bytes(v.MovedBytes))
		if v.File != "" {
			files.Add(v.File, v.SHA256)
		}
	}
	p.Section("Disks", sizes, "none yet")
	p.Section("Files on the target", files, "")
}

func backupOptions(b *backupv1.VirtualMachineBackup) string {
	var options []string
	if b.Spec.ForceFullBackup {
		options = append(options, "full by force")
	}
	if b.Spec.SkipQuiesce {
		options = append(options, "without freezing file systems")
	}
	return strings.Join(options, ", ")
}

func progressOf(b *backupv1.VirtualMachineBackup) string {
	p := b.Status.Progress
	if p == nil {
		return ""
	}
	return fmt.Sprintf("%s, %s of %s", p.Percent, human.Bytes(p.ProcessedBytes), human.Bytes(p.TotalBytes))
}

func baseOf(b *backupv1.VirtualMachineBackup) string {
	base := b.Status.BaseCheckpoint
	if base == nil {
		return ""
	}
	return fmt.Sprintf("%s of backup %s", base.Name, human.Or(base.BackupName))
}

func formatTarget(b *backupv1.VirtualMachineBackup) string {
	text := "claim " + b.Spec.PVCName
	if b.Status.Directory != "" {
		text += ", directory " + b.Status.Directory
	}
	return text
}

// formatMillis returns a duration that may be absent.
func formatMillis(n *int64) string {
	if n == nil || *n == 0 {
		return ""
	}
	return human.Took(time.Duration(*n) * time.Millisecond)
}
