package disk

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// difference is the result of `disk diff`.
type difference struct {
	// From and To are the restore points' IDs.
	From string `json:"from"`
	To   string `json:"to"`
	Disk string `json:"disk"`
	// FromBytes and ToBytes are the disks' sizes, DifferentBytes the sum of Extents.
	FromBytes      int64        `json:"fromBytes"`
	ToBytes        int64        `json:"toBytes"`
	BlockBytes     int64        `json:"blockBytes"`
	DifferentBytes int64        `json:"differentBytes"`
	Extents        []diffExtent `json:"extents"`
}

type diffExtent struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

func newDiffCommand(s *repoaccess.Session) *cobra.Command {
	var form, name string
	c := &cobra.Command{
		Use: "diff ID1 ID2", Short: "Show where a disk differs between two restore points",
		Long: `Show the extents, in bytes, in which a disk differs between two restore points. The command
compares tables of blocks and reads no data: every block of an extent differs somewhere, and
nothing differs elsewhere. What only the larger disk has counts as different. The restore points
may be of different histories.

The exit code is 0 whether the disks differ or not. Without a difference, no extents are shown.`,
		Example: `  varve disk diff 5e1f9c 77ab02 --disk root

  # How many bytes?
  varve disk diff 5e1f9c 77ab02 -o json | jq .differentBytes`,
		Args: cmdline.ExactArgs(2, "the IDs of two restore points"), ValidArgsFunction: completePoints(s, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.WithRepository(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
				l, ids, err := restorepoint.ReadNamed(ctx, r, args...)
				if err != nil {
					return err
				}
				points := make([]*repository.RestorePoint, len(args))
				disks := make([]*repository.Disk, len(args))
				for i, prefix := range ids {
					if points[i], err = l.Find(prefix); err != nil {
						return err
					}
					if disks[i], err = selectDisk(points[i], name); err != nil {
						return err
					}
				}
				set, err := r.Diff(ctx, *disks[0], *disks[1])
				if err != nil {
					return err
				}
				d := newDifference(points, disks, set)
				if output.IsForPrograms(form) {
					return output.PrintData(cmd.OutOrStdout(), form, d)
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "disk %s: %s in %s differ\n", human.Line(d.Disk), human.Bytes(d.DifferentBytes), human.Count(len(d.Extents), "extent"))
				if len(d.Extents) == 0 {
					return nil
				}
				return d.newTable().Write(cmd.OutOrStdout())
			})
		},
	}
	addDiskFlag(s, c, &name)
	output.AddFlag(c, &form, output.AsTable, output.AsJSON, output.AsYAML)
	return c
}

// selectDisk returns the disk called name, or the only one if name is empty.
func selectDisk(p *repository.RestorePoint, name string) (*repository.Disk, error) {
	if p.Files != nil {
		return nil, failure.Usage("restore point %s has files and no disk", p.ID)
	}
	if name == "" {
		if len(p.Disks) != 1 {
			return nil, failure.Usage("restore point %s has %d disks: select one with --disk (%s)", p.ID, len(p.Disks), joinNames(mover.DiskNames(p)))
		}
		name = p.Disks[0].Name
	}
	d, err := p.Disk(name)
	if err != nil {
		return nil, &failure.Error{Err: err, Code: errclass.ExitNotFound, Hint: "its disks are " + joinNames(mover.DiskNames(p))}
	}
	return d, nil
}

func newDifference(points []*repository.RestorePoint, disks []*repository.Disk, set extent.Set) difference {
	d := difference{
		From: points[0].ID, To: points[1].ID, Disk: disks[0].Name, FromBytes: disks[0].Bytes, ToBytes: disks[1].Bytes,
		BlockBytes: disks[0].BlockBytes, DifferentBytes: set.Bytes(), Extents: []diffExtent{},
	}
	for e := range set.All() {
		d.Extents = append(d.Extents, diffExtent{Offset: e.Offset, Length: e.Length})
	}
	return d
}

func (d difference) newTable() *output.Table {
	t := &output.Table{Header: []string{"OFFSET", "LENGTH"}}
	for _, e := range d.Extents {
		t.Add(strconv.FormatInt(e.Offset, 10), strconv.FormatInt(e.Length, 10))
	}
	return t
}
