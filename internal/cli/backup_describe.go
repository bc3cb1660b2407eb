package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/backupstate"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
)

func (s *clusterSession) backupDescribe() *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe NAME", Short: "Show a backup with its disks, files, conditions and events",
		Long: `Show a backup: how it went or what it waits for, for each disk whether it is full or
incremental and why, the bytes that were written, the files, the conditions and the events.`,
		Example: `  varve backup describe web-x7k2p

  # The API object
  varve backup describe web-x7k2p -o json`,
		Args: cmdline.ExactArgs(1, "the name of a backup"), ValidArgsFunction: s.completeArgs(newBackups, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.connect()
			if err != nil {
				return err
			}
			b, err := getBackup(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if form != "" {
				return printObject(cmd.OutOrStdout(), form, b)
			}
			list, err := events(cmd.Context(), c, b.Namespace, b.UID)
			if err != nil {
				return err
			}
			p := &page{w: cmd.OutOrStdout(), now: s.Now()}
			p.backup(b)
			p.events(list)
			return p.err
		},
	}
	outputFlag(c, &form, asJSON, asYAML, asName)
	return c
}

func (p *page) backup(b *backupv1.VirtualMachineBackup) {
	p.fields(
		"Name", b.Name,
		"Namespace", b.Namespace,
		"Created", p.moment(b.CreationTimestamp.Time),
		"Labels", keyValues(b.Labels),
		"Virtual machine", sourceOf(b),
		"Tracker", b.Spec.BackupTracker,
		"Options", backupOptions(b),
		"Phase", phaseOf(b),
		"Reason", b.Status.Reason,
		"Message", b.Status.Message,
		"Progress", progressOf(b),
		"Type", string(b.Status.BackupType),
		"Checkpoint", b.Status.CheckpointName,
		"Base", baseOf(b),
		"Target", target(b),
		"Node", b.Status.NodeName,
		"Point in time", p.timestamp(b.Status.StartTimestamp),
		"Completed", p.timestamp(b.Status.CompletionTimestamp),
		"Took", tookOf(b, p.now),
		"Copied in", millis(&b.Status.CopyMillis),
		"Hashed in", millis(&b.Status.SealMillis),
		"Frozen", millis(b.Status.FrozenMillis),
		"Moved", movedOf(b),
	)
	p.volumes(b.Status.IncludedVolumes)
	t := &table{header: []string{"CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"}}
	for _, c := range b.Status.Conditions {
		t.add(c.Type, string(c.Status), p.age(c.LastTransitionTime.Time), c.Reason, c.Message)
	}
	p.section("Conditions", t, "none")
}

func (p *page) volumes(all []backupv1.IncludedVolume) {
	sizes := &table{header: []string{"DISK", "TYPE", "WHY FULL", "SIZE", "MOVED"}}
	files := &table{header: []string{"FILE", "SHA-256"}}
	for _, v := range all {
		sizes.add(v.Name, string(v.Type), backupstate.WhyFull(v.FullReason), human.Bytes(v.VirtualBytes), human.Bytes(v.MovedBytes))
		if v.File != "" {
			files.add(v.File, v.SHA256)
		}
	}
	p.section("Disks", sizes, "none yet")
	p.section("Files on the target", files, "")
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

func target(b *backupv1.VirtualMachineBackup) string {
	text := "claim " + b.Spec.PVCName
	if b.Status.Directory != "" {
		text += ", directory " + b.Status.Directory
	}
	return text
}

// millis returns a duration that may be absent.
func millis(n *int64) string {
	if n == nil || *n == 0 {
		return ""
	}
	return human.Took(time.Duration(*n) * time.Millisecond)
}
