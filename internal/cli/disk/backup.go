package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

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
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

func newBackupCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var d session.Display
	var b backupFlags
	c := &cobra.Command{
		Use: "backup NAME DISK=WHERE...", Short: "Make a restore point of one or more disks",
		Long: `Read disks, and make a restore point of them under the NAME of the machine that they belong to.
WHERE is a file, a block device, or an NBD URI, such as nbd+unix:///export?socket=/path.
The disks must not change during the backup: stop the machine, or read a snapshot or an NBD export.
The command refuses a disk that is mounted or that a running machine has open. No machine can open
the disk for writing while it is read (QEMU's image locks; QEMU's "locking=off" disables them).

Of a qcow2 image, only the file itself is read. Its header could name any file on this host, so
backing files are read only if --backing names them with their formats. Data files are never read.

Data that the repository already has is not stored again. Without --track or --bitmap, the backup
reads everything that may hold data.

With --track, Varve keeps a dirty bitmap in each qcow2 image. It adds a bitmap before it reads the
image. The next backup with --track reads only what that bitmap marks, and replaces the bitmap. No
guest may have the image open during the backup. Writes before and after it are recorded.

For a running guest, --bitmap names the dirty bitmap of an NBD export that marks what changed since
a checkpoint. --checkpoint names the checkpoint of this backup; the next backup needs its bitmap.
Add that bitmap in the same moment as the export. Use names that varve disk checkpoint prints: with
a name that is used twice, such as that of a weekday, a backup could start from the wrong restore
point. docs/quickstart-host.md has the commands for libvirt.

An incremental backup starts from the latest restore point of its disks. If the bitmap starts from
another point or belongs to another disk, the backup reads the whole disk, and TYPE says why.`,
		Example: `  varve disk backup web root=/var/lib/vms/web.img

  # A qcow2 image and a device
  varve disk backup web root=/var/lib/vms/web.qcow2 data=/dev/vg0/web --format root=qcow2

  # A qcow2 image over a raw one
  varve disk backup web root=/var/lib/vms/web.qcow2 --format qcow2 --backing raw:/var/lib/vms/base.img

  # Only what changed since the last backup with --track
  varve disk backup web root=/var/lib/vms/web.qcow2 --format qcow2 --track

  # Only what changed in a running guest; the checkpoint $next was made with the export
  varve disk backup web root='nbd+unix:///vda?socket=/run/web.sock' --bitmap $base --checkpoint $next

  # From an NBD server on the network, which asks for a client certificate
  varve disk backup web root=nbds://host2.example/vda --tls-ca ca.pem --tls-cert client.pem --tls-key client-key.pem`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				return failure.Misused(c, "give the machine's name and at least one disk, such as root=/path")
			}
			return nil
		},
		ValidArgsFunction: completeHistory(s, true),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(validateHistoryName(args[0]), validateParallel(b.workers)); err != nil {
				return err
			}
			sources, err := b.parseSources(args[1:])
			if err != nil {
				return err
			}
			if b.definition, err = readDefinition(b.definitionFile); err != nil {
				return err
			}
			return backUpDisks(cmd.Context(), s, cmd.OutOrStdout(), form, args[0], sources, &b, &d)
		},
	}
	b.addFlags(c)
	cmdline.RegisterCompletion(c, "parent", completeParent(s))
	d.AddFlag(c, "while reading")
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

// backupFlags are the flags of `disk backup`.
type backupFlags struct {
	history     historyFlags
	formats     []string
	bitmaps     []string
	backing     []string
	ignoreLocks bool
	tls         nbdTLSFlags
	checkpoint  string
	track       bool
	parent      string
	compression string
	block       string
	workers     int
	// definitionFile is the file with the definition of the machine, and definition what it holds; nil: none.
	definitionFile string
	definition     []byte
}

func (b *backupFlags) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&b.history.host, "host", "", "the host that the history belongs to (default: the host of this connection)")
	f.StringVar(&b.history.user, "user", "", "the user that the history belongs to (default: the user of this connection)")
	f.StringSliceVar(&b.formats, "format", nil, "raw or qcow2, for all disks or as DISK=FORMAT (default raw; never guessed)")
	f.BoolVar(&b.track, "track", false, "keep track of what changes in qcow2 images, and read only that")
	f.StringSliceVar(&b.bitmaps, "bitmap", nil, "the dirty bitmap with what changed, for all disks or as DISK=BITMAP")
	f.StringArrayVar(&b.backing, "backing", nil, "a backing file of a qcow2 image, as [DISK=]FORMAT:PATH; once for each, from the image down")
	f.BoolVar(&b.ignoreLocks, "ignore-locks", false, "read a raw disk although it is mounted or a machine writes to it; make sure that nothing changes it")
	b.tls.addFlags(c)
	f.StringVar(&b.checkpoint, "checkpoint", "", "the checkpoint of this backup: a name that varve disk checkpoint printed, and that was not used before")
	f.StringVar(&b.parent, "parent", repository.ParentAuto, "the restore point that changes are counted from: auto, none or an ID")
	cmdline.AddChoice(c, &b.compression, "compression", "s2", "s2, zstd or none", "s2", "zstd", "none")
	cmdline.AddChoice(c, &b.block, "block-size", "", strings.Join(repository.BlockSizes(), ", ")+": for disks without a history (default 256KiB)", repository.BlockSizes()...)
	f.StringVar(&b.definitionFile, "definition", "",
		"a JSON file with what it takes to make a machine of the disks again, for varve disk definition")
	f.IntVar(&b.workers, "parallel", repository.DefaultWorkers, "how many blocks are read and stored in parallel")
	cmdline.CompleteFixed(c, "format", string(disk.Raw), string(disk.QCOW2))
}

func backUpDisks(ctx context.Context, s *repoaccess.Session, w io.Writer, form, name string, sources []mover.Source, b *backupFlags, d *session.Display) error {
	var block int64 // the default
	if b.block != "" {
		var err error
		if block, err = repository.ParseBlockSize(b.block); err != nil {
			return err
		}
	}
	return s.WithWritable(ctx, func(ctx context.Context, r *repository.Repository) error {
		parent, err := resolveParent(ctx, r, b.parent)
		if err != nil {
			return err
		}
		q := mover.BackupRequest{
			History: r.Source(b.history.host, b.history.user, mover.HistoryPath(name)), Sources: sources, Track: b.track,
			Parent: parent, BlockBytes: block, Compression: b.compression, Workers: b.workers, Definition: b.definition,
		}
		var warnings []error
		q.Warn = func(err error) { warnings = append(warnings, err) } // Nobody else may write while the progress is shown.
		var point *repository.RestorePoint
		err = d.ShowWhile(s.Session, func(show func(progress.Report)) (err error) {
			q.Progress = func(p mover.Progress) { show(repoaccess.NewReport(name, p)) }
			point, err = mover.Backup(ctx, r, q)
			return err
		})
		for _, warning := range warnings {
			s.Warn(warning)
		}
		if err != nil {
			return failure.Interrupted(ctx, backupFailure(err), "no restore point of "+human.Line(name)+" was made", "run the same command again: it stores what is missing")
		}
		if form != "" {
			return restorepoint.Print(&output.Printer{Out: w, Form: form}, []*repository.RestorePoint{point})
		}
		return restorepoint.PrintBackup(w, point)
	})
}

// resolveParent returns what --parent asks for, with the whole ID.
func resolveParent(ctx context.Context, r *repository.Repository, text string) (string, error) {
	if text == repository.ParentAuto || text == repository.ParentNone {
		return text, nil
	}
	p, err := restorepoint.Find(ctx, r, text)
	if err != nil {
		return "", fmt.Errorf("--parent: %w", err)
	}
	return p.ID, nil
}

// backupFailure gives errors of the sources of a backup their hints.
func backupFailure(err error) error {
	var missing *mover.MissingBitmapError
	var bitmap *mover.BitmapError
	var opening *mover.OpenError
	switch {
	case errors.As(err, &missing):
		return &failure.Error{
			Err:  fmt.Errorf("disk %s: %s has no bitmap %s, which --checkpoint names: the next backup needs it", missing.Source, missing.Location, missing.Checkpoint),
			Code: errclass.ExitRefused, Hint: "add the bitmap before the backup, or let Varve do that: --track",
		}
	case errors.As(err, &bitmap):
		return &failure.Error{
			Err: err, Code: errclass.ExitRefused,
			Hint: "--track needs an image that no guest has open; back up a running guest through an NBD export, with --bitmap and --checkpoint",
		}
	case errors.As(err, &opening):
		return diskFailure(err)
	default:
		return err
	}
}
