package disk

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

func newDescribeCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe ID", Short: "Show a restore point with its disks",
		Long: `Show a restore point: for each disk its size, whether the backup was full and why, how much was
read and changed, and where it comes from: identity, point of change tracking, parent.`,
		Example: `  varve disk describe 5e1f9c

  # For a program
  varve disk describe 5e1f9c -o json`,
		Args: cmdline.ExactArgs(1, "the ID of a restore point"), ValidArgsFunction: completePoints(s, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.WithRepository(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
				point, err := restorepoint.Find(ctx, r, args[0])
				if err != nil {
					return err
				}
				if form != "" {
					return output.PrintData(cmd.OutOrStdout(), form, point)
				}
				p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
				writePoint(p, point)
				return p.Err
			})
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML)
	return c
}

func writePoint(p *output.Page, point *repository.RestorePoint) {
	p.Fields(
		"ID", point.ID,
		"Name", mover.HistoryName(point.Source),
		"Host", point.Source.Host,
		"User", point.Source.User,
		"Time", p.Moment(point.Time),
		"Type", restorepoint.FormatType(point),
		"Size", human.Bytes(point.DiskBytes()),
		"Changed", human.Bytes(restorepoint.ChangedBytes(point)),
		"Pins", strings.Join(point.Pins, ", "),
		"Kopia snapshot", point.Snapshot,
		"Snapshot ID", restorepoint.SnapshotID(point),
		"Definition", formatDefinition(point.Definition),
	)
	disks := &output.Table{Header: []string{"DISK", "SIZE", "BLOCK SIZE", "TYPE", "READ", "ZEROES", "CHANGED"}}
	links := &output.Table{Header: []string{"DISK", "IDENTITY", "CHANGE", "PARENT", "SINCE"}}
	digests := &output.Table{Header: []string{"DISK", "DIGEST"}}
	for i := range point.Disks {
		d := &point.Disks[i]
		disks.Add(d.Name, human.Bytes(d.Bytes), human.Bytes(d.BlockBytes), diskType(d),
			human.Bytes(d.Stats.ReadBytes), human.Bytes(d.Stats.ZeroBytes), human.Bytes(d.Stats.ChangedBytes))
		links.Add(d.Name, d.Identity, d.Change, d.Parent, d.Base)
		digests.Add(d.Name, d.Digest)
	}
	if point.Files != nil {
		writeFiles(p, point.Files)
		return
	}
	p.Section("Disks", disks, "none")
	p.Section("Source", links, "")
	p.Section("Content", digests, "")
}

// formatDefinition says how large the definition of the machine is; "": there is none.
func formatDefinition(d *repository.Definition) string {
	if d == nil {
		return ""
	}
	return fmt.Sprintf("%d bytes", d.Bytes)
}

// writeFiles describes the files of a restore point.
func writeFiles(p *output.Page, f *repository.Files) {
	t := &output.Table{Header: []string{"FILES", "DIRECTORIES", "LINKS", "PIPES AND DEVICES", "SOCKETS LEFT OUT", "READ", "TAKEN OVER"}}
	t.Add(strconv.FormatInt(f.Count, 10), strconv.FormatInt(f.Directories, 10), strconv.FormatInt(f.Symlinks, 10), strconv.FormatInt(f.Specials, 10),
		strconv.FormatInt(f.Sockets, 10), human.Bytes(f.Stats.ReadBytes), human.Bytes(f.Stats.KeptBytes))
	p.Section("Files", t, "none")
	links := &output.Table{Header: []string{"IDENTITY", "PARENT", "TREE"}}
	links.Add(f.Identity, f.Parent, f.Tree.String())
	p.Section("Source", links, "")
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
	repository.FullParentLater:   "the parent has later content",
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
