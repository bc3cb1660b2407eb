package disk

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// restoreFlags are the flags of `disk restore`.
type restoreFlags struct {
	disk, format      string
	overwrite, larger bool
	skipEqual         bool
	workers           int
	tls               nbdTLSFlags
	// tlsConfig is the configuration that tls describes.
	tlsConfig *tls.Config
}

func newRestoreCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var d session.Display
	var f restoreFlags
	c := &cobra.Command{
		Use: "restore ID WHERE", Short: "Write a disk of a restore point to a file, a device, an NBD export or standard output",
		Long: `Write a disk of a restore point to WHERE: a file, which is created sparse, a block device, or an
NBD URI. Every block is checked before it is written. The restore ends at the first block that
cannot be read.

A restore that was interrupted continues where it ended if you run it again: a journal beside
the file says what was finished. A target that has content is refused without --overwrite.

With --skip-equal, a target that has some of the disk already, such as a clone of its image or an
older state, is read first, and only blocks of 4 KiB that differ are written. The result is the
same. What the target shares with other files stays shared, and a whole restore that changes
little writes little.

If WHERE is -, the disk is written to standard output in raw format, with zeroes for holes. An
interrupted restore to standard output starts from the beginning. For a file called -, use ./-.

The restore point can be deleted during the restore: a lease keeps its data. A read-only
connection takes no lease.`,
		Example: `  varve disk restore 5e1f9c /var/lib/vms/web.img

  # The latest restore point of a machine
  varve disk restore web /var/lib/vms/web.img

  # One of several disks, to a device that has content
  varve disk restore 5e1f9c /dev/vg0/data --disk data --overwrite

  # To another machine
  varve disk restore 5e1f9c - | ssh host2 'cat > /dev/vg0/web'

  # To a clone of an image, of which it keeps what is the same
  cp --reflink=always debian-13.raw /var/lib/vms/web.img
  varve disk restore 5e1f9c /var/lib/vms/web.img --overwrite --skip-equal

  # As a qcow2 image
  varve disk restore 5e1f9c /var/lib/vms/web.qcow2 --format qcow2

  # To an NBD server whose certificate has another name than its address
  varve disk restore 5e1f9c 'nbds://10.0.0.5/root?tls-hostname=host2.example' --tls-ca ca.pem`,
		Args: cmdline.ExactArgs(2, "the ID of a restore point and where to write the disk"), ValidArgsFunction: completePointThenFile(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] == standardOutput {
				return streamDisk(s, cmd, args[0], form, &f, &d)
			}
			return restoreDisk(cmd.Context(), s, cmd.OutOrStdout(), form, args[0], args[1], &f, &d)
		},
	}
	addDiskFlag(s, c, &f.disk)
	cmdline.AddChoice(c, &f.format, "format", "", "the format to write, raw or qcow2 (default raw; needed for a name that ends in .qcow2)", string(disk.Raw), string(disk.QCOW2))
	c.Flags().BoolVar(&f.overwrite, "overwrite", false, "overwrite the content of the target")
	c.Flags().BoolVar(&f.skipEqual, "skip-equal", false,
		"read the target first, and write only what differs (not for qcow2)")
	c.Flags().BoolVar(&f.larger, "larger", false, "accept a device that is larger than the disk; the rest of it stays as it is")
	c.Flags().IntVar(&f.workers, "parallel", repository.DefaultWorkers, "how many regions are fetched and written in parallel")
	f.tls.addFlags(c)
	d.AddFlag(c, "while writing")
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML)
	return c
}

// restoreResult is the result of a restore.
type restoreResult struct {
	ID     string `json:"id"`
	Disk   string `json:"disk"`
	Target string `json:"target"`
	Bytes  int64  `json:"bytes"`
	// ResumedBytes were already there, from an earlier restore that was interrupted.
	ResumedBytes int64 `json:"resumedBytes"`
	// WrittenBytes differed from what the target had and EqualBytes did not, with --skip-equal.
	WrittenBytes *int64 `json:"writtenBytes,omitempty"`
	EqualBytes   *int64 `json:"equalBytes,omitempty"`
	Digest       string `json:"digest"`
}

// findDisk finds a restore point and one of its disks. name may be empty if there is only one.
func findDisk(ctx context.Context, r *repository.Repository, id, name string) (*repository.RestorePoint, *repository.Disk, error) {
	p, err := restorepoint.Find(ctx, r, id)
	if err != nil {
		return nil, nil, err
	}
	d, err := selectDisk(p, name)
	return p, d, err
}

func restoreDisk(ctx context.Context, s *repoaccess.Session, w io.Writer, form, id, where string, f *restoreFlags, d *session.Display) error {
	if err := validateFormat(where, f.format); err != nil {
		return err
	}
	if err := validateParallel(f.workers); err != nil {
		return err
	}
	var err error
	if f.tlsConfig, err = f.tls.loadTLSConfig(where); err != nil {
		return err
	}
	return s.WithRepository(ctx, func(ctx context.Context, r *repository.Repository) error {
		p, chosen, err := findDisk(ctx, r, id, f.disk)
		if err != nil {
			return err
		}
		out := restoreResult{ID: p.ID, Disk: chosen.Name, Target: where, Bytes: chosen.Bytes, Digest: chosen.Digest}
		err = mover.WithLease(ctx, r, p.ID, s.Warn, func() error {
			return d.ShowWhile(s.Session, func(show func(progress.Report)) error {
				result, err := mover.Restore(ctx, r, mover.RestoreRequest{
					Disk: *chosen, Workers: f.workers,
					Destination: mover.Destination{
						Location: where, Format: disk.Format(f.format), Overwrite: f.overwrite, Larger: f.larger,
						TLS: f.tlsConfig, SkipEqual: f.skipEqual,
					},
					Progress: func(p mover.Progress) { show(repoaccess.NewReport(chosen.Name, p)) },
				})
				out.ResumedBytes = result.ResumedBytes
				if f.skipEqual {
					out.WrittenBytes, out.EqualBytes = &result.WrittenBytes, &result.EqualBytes
				}
				return restoreFailure(ctx, err, where)
			})
		})
		if err != nil {
			return err
		}
		if form != "" {
			return output.PrintData(w, form, out)
		}
		fmt.Fprintf(w, "disk %s of restore point %s: %s in %s%s\n", human.Line(out.Disk), out.ID, human.Bytes(out.Bytes),
			human.Line(where), out.describeWork())
		return nil
	})
}

// describeWork says what did not have to be written, or nothing.
func (r *restoreResult) describeWork() string {
	text := ""
	if r.ResumedBytes > 0 {
		text = fmt.Sprintf(" (%s were already there)", human.Bytes(r.ResumedBytes))
	}
	if r.WrittenBytes != nil {
		text += fmt.Sprintf(" (%s differed and were written, %s were the same)", human.Bytes(*r.WrittenBytes),
			human.Bytes(*r.EqualBytes))
	}
	return text
}

// restoreFailure says what became of a restore that did not complete. where is its destination.
func restoreFailure(ctx context.Context, err error, where string) error {
	var incomplete *mover.IncompleteError
	var opening *mover.OpenError
	switch {
	case errors.As(err, &incomplete):
		hint := "run the same command again: it starts from the beginning, because a device or an NBD export has no journal"
		if incomplete.Resumable {
			hint = "run the same command again: it continues where this one ended"
		}
		return failure.Interrupted(ctx, err, human.Line(where)+" is not complete", hint)
	case errors.As(err, &opening):
		return diskFailure(err)
	default:
		return err
	}
}
