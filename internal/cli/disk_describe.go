package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

func (s *repositorySession) diskDescribe() *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe ID", Short: "Show a restore point with its disks",
		Long: `Show a restore point: for each disk its size, whether the backup was full and why, how much was
read and changed, and where it comes from: identity, point of change tracking, parent.`,
		Example: `  varve disk describe 5e1f9c

  # For a program
  varve disk describe 5e1f9c -o json`,
		Args: cmdline.ExactArgs(1, "the ID of a restore point"), ValidArgsFunction: s.completePoints(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.withRepository(cmd.Context(), func(r *repository.Repository) error {
				point, err := findPoint(cmd.Context(), r, args[0])
				if err != nil {
					return err
				}
				if form != "" {
					return printData(cmd.OutOrStdout(), form, point)
				}
				p := &page{w: cmd.OutOrStdout(), now: s.Now()}
				p.point(point)
				return p.err
			})
		},
	}
	outputFlag(c, &form, asJSON, asYAML)
	return c
}

func (p *page) point(point *repository.RestorePoint) {
	p.fields(
		"ID", point.ID,
		"Name", mover.HistoryName(point.Source),
		"Host", point.Source.Host,
		"User", point.Source.User,
		"Time", p.moment(point.Time),
		"Type", pointType(point),
		"Size", human.Bytes(point.DiskBytes()),
		"Changed", human.Bytes(changedBytes(point)),
		"Pins", strings.Join(point.Pins, ", "),
		"Kopia snapshot", point.Snapshot,
	)
	disks := &table{header: []string{"DISK", "SIZE", "BLOCK SIZE", "TYPE", "READ", "ZEROES", "CHANGED"}}
	links := &table{header: []string{"DISK", "IDENTITY", "CHANGE", "PARENT", "SINCE"}}
	digests := &table{header: []string{"DISK", "DIGEST"}}
	for i := range point.Disks {
		d := &point.Disks[i]
		disks.add(d.Name, human.Bytes(d.Bytes), human.Bytes(d.BlockBytes), diskType(d),
			human.Bytes(d.Stats.ReadBytes), human.Bytes(d.Stats.ZeroBytes), human.Bytes(d.Stats.ChangedBytes))
		links.add(d.Name, d.Identity, d.Change, d.Parent, d.Base)
		digests.add(d.Name, d.Digest)
	}
	p.section("Disks", disks, "none")
	p.section("Source", links, "")
	p.section("Content", digests, "")
}

// diskFullReasons describes each reason in words.
var diskFullReasons = map[repository.FullReason]string{
	repository.FullAsked:         "asked for",
	repository.FullNoParent:      "the first of this disk",
	repository.FullNoChanges:     "what changed was not tracked",
	repository.FullOtherBase:     "the changes are counted from another point",
	repository.FullOtherIdentity: "another disk of the same name",
	repository.FullOtherContent:  "what did not change is not as in the parent: another disk, or not all changes were recorded",
	repository.FullParentDamaged: "the parent is damaged",
}

func diskType(d *repository.Disk) string {
	if d.FullReason == "" {
		return "Incremental"
	}
	if text, known := diskFullReasons[d.FullReason]; known {
		return fmt.Sprintf("Full (%s: %s)", d.FullReason, text)
	}
	return fmt.Sprintf("Full (%s)", d.FullReason)
}
