package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/repository"
)

func (s *session) diskBackup() *cobra.Command {
	var form string
	var d display
	var b backupFlags
	c := &cobra.Command{
		Use: "backup NAME DISK=WHERE...", Short: "Make a restore point of one or more disks",
		Long: `Read disks and make a restore point of them, under the NAME of the machine that they belong to.
WHERE is a file, a block device, or an NBD URI, such as nbd+unix:///export?socket=/path.
The disks must not change meanwhile: stop the machine, or read a snapshot or an NBD export of one.

What the repository has already is not stored again. Without --bitmap everything that may hold
data is read. With it, only what changed is: a dirty bitmap of QEMU, in a qcow2 image or behind an
NBD export, has what changed since the checkpoint that it is named after. --checkpoint names the
moment of this backup, for the bitmap of the next one. If the last restore point is not of the
bitmap's checkpoint, or of another disk, the disk is read as a whole, and TYPE says why.`,
		Example: `  varve disk backup web root=/var/lib/vms/web.img

  # A qcow2 image and a device
  varve disk backup web root=/var/lib/vms/web.qcow2 data=/dev/vg0/web --format root=qcow2

  # Only what changed since the checkpoint monday, which becomes tuesday
  varve disk backup web root='nbd+unix:///web?socket=/run/web.sock' --bitmap monday --checkpoint tuesday`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("give the machine's name and at least one disk, such as root=/path")
			}
			return nil
		},
		ValidArgsFunction: s.completeHistory(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(historyName(args[0]), atWork(b.workers)); err != nil {
				return err
			}
			specs, err := b.specs(args[1:])
			if err != nil {
				return err
			}
			return s.backUpDisks(cmd.Context(), cmd.OutOrStdout(), form, args[0], specs, &b, &d)
		},
	}
	b.flags(c)
	register(c, "parent", s.completeParent)
	d.flags(c, "while reading")
	outputFlag(c, &form, asJSON, asYAML, asName)
	return c
}

// backupFlags are the flags of `disk backup`.
type backupFlags struct {
	source      sourceFlags
	formats     []string
	bitmaps     []string
	checkpoint  string
	parent      string
	compression string
	block       string
	workers     int
}

func (b *backupFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&b.source.host, "host", "", "the host that the history belongs to (default: this connection's)")
	f.StringVar(&b.source.user, "user", "", "the user that the history belongs to (default: this connection's)")
	f.StringSliceVar(&b.formats, "format", nil, "raw or qcow2, for all disks or as DISK=FORMAT (default raw; never guessed)")
	f.StringSliceVar(&b.bitmaps, "bitmap", nil, "the dirty bitmap with what changed, for all disks or as DISK=BITMAP")
	f.StringVar(&b.checkpoint, "checkpoint", "", "the name of this moment in the tracking of changes")
	f.StringVar(&b.parent, "parent", repository.ParentAuto, "the restore point that changes are counted from: auto, none or an ID")
	choiceFlag(c, &b.compression, "compression", "s2", "s2, zstd or none", "s2", "zstd", "none")
	choiceFlag(c, &b.block, "block-size", "", strings.Join(repository.BlockSizes(), ", ")+": for disks without a history (default 256KiB)", repository.BlockSizes()...)
	f.IntVar(&b.workers, "parallel", repository.DefaultWorkers, "how many blocks are read and stored side by side")
	completeFixed(c, "format", string(disk.Raw), string(disk.QCOW2))
}

// diskSpec is a disk as the user names it.
type diskSpec struct {
	name, where string
	options     disk.SourceOptions
}

func (b *backupFlags) specs(args []string) ([]diskSpec, error) {
	var out []diskSpec
	for _, arg := range args {
		name, where, ok := strings.Cut(arg, "=")
		if !ok || name == "" || where == "" {
			return nil, usage("disk %s: write DISK=WHERE, such as root=/path", arg)
		}
		if slices.ContainsFunc(out, func(d diskSpec) bool { return d.name == name }) {
			return nil, usage("disk %s: it is there twice", name)
		}
		out = append(out, diskSpec{name: name, where: where})
	}
	formats, err := perDisk("--format", b.formats, out)
	if err != nil {
		return nil, err
	}
	bitmaps, err := perDisk("--bitmap", b.bitmaps, out)
	if err != nil {
		return nil, err
	}
	for i := range out {
		format := disk.Format(formats[out[i].name])
		if err := validFormat(out[i].where, string(format)); err != nil {
			return nil, err
		}
		out[i].options = disk.SourceOptions{Format: format, Bitmap: bitmaps[out[i].name]}
	}
	return out, nil
}

// validFormat refuses a --format that there is not, and none for a file that says by its name that it may be qcow2.
func validFormat(where, format string) error {
	switch disk.Format(format) {
	case "":
		if strings.EqualFold(filepath.Ext(where), ".qcow2") && !strings.Contains(where, "://") {
			return usage("%s: say --format qcow2 or --format raw, because the format of a disk is never guessed", where)
		}
		return nil
	case disk.Raw, disk.QCOW2:
		return nil
	default:
		return usage("--format %s: raw or qcow2", format)
	}
}

// atWork refuses a --parallel that makes no sense.
func atWork(workers int) error {
	if workers < 1 {
		return usage("--parallel %d: at least 1", workers)
	}
	return nil
}

// perDisk reads values that are for all disks, or for one as DISK=VALUE.
func perDisk(flag string, values []string, disks []diskSpec) (map[string]string, error) {
	out := map[string]string{}
	for _, v := range values {
		name, value, one := strings.Cut(v, "=")
		if !one {
			for _, d := range disks {
				if out[d.name] == "" {
					out[d.name] = v
				}
			}
			continue
		}
		if !slices.ContainsFunc(disks, func(d diskSpec) bool { return d.name == name }) {
			return nil, usage("%s %s: no disk is called %s", flag, v, name)
		}
		out[name] = value
	}
	return out, nil
}

func (s *session) backUpDisks(ctx context.Context, w io.Writer, form, name string, specs []diskSpec, b *backupFlags, d *display) error {
	var block int64 // the default
	if b.block != "" {
		var err error
		if block, err = repository.ParseBlockSize(b.block); err != nil {
			return err
		}
	}
	return s.withWritable(ctx, func(r *repository.Repository) error {
		parent, err := parentOf(ctx, r, b.parent)
		if err != nil {
			return err
		}
		var point *repository.RestorePoint
		err = d.during(s, func(show func(progress.Report)) (err error) {
			show(progress.Report{Name: name, Phase: "Opening", Message: "the disks"})
			q := repository.Request{
				Source: r.Source(b.source.host, b.source.user, sourcePath(name)), Parent: parent, BlockBytes: block, Compression: b.compression, Workers: b.workers,
				Progress: func(p repository.Progress) { show(backupReport(name, p)) },
			}
			sources, err := openSources(ctx, specs, b.checkpoint, &q)
			if err == nil {
				point, err = r.Backup(ctx, q)
			}
			return errors.Join(err, closeAll(sources))
		})
		if err != nil {
			return interrupted(ctx, err, "no restore point of "+human.Line(name)+" was made", "the same command again stores what is missing")
		}
		if form != "" {
			return printPoints(w, form, []*repository.RestorePoint{point})
		}
		return printBackup(w, point)
	})
}

// parentOf is what --parent asks for, with the whole ID.
func parentOf(ctx context.Context, r *repository.Repository, text string) (string, error) {
	if text == repository.ParentAuto || text == repository.ParentNone {
		return text, nil
	}
	l, err := listPoints(ctx, r)
	if err != nil {
		return "", err
	}
	p, err := l.find(text)
	if err != nil {
		return "", fmt.Errorf("--parent: %w", err)
	}
	return p.ID, nil
}

// openSources opens the disks and adds them to the request. What it opened is returned even if it fails.
func openSources(ctx context.Context, specs []diskSpec, checkpoint string, q *repository.Request) ([]disk.Source, error) {
	var sources []disk.Source
	for _, spec := range specs {
		source, err := disk.OpenSource(ctx, spec.where, spec.options)
		if err != nil {
			return sources, fmt.Errorf("disk %s: %w", spec.name, err)
		}
		sources = append(sources, source)
		d := repository.DiskSource{Name: spec.name, Bytes: source.Bytes(), Reader: source, Identity: source.Identity(), Change: checkpoint}
		if d.Data, err = source.Data(ctx); err != nil {
			return sources, fmt.Errorf("disk %s: %w", spec.name, err)
		}
		changes, err := source.Changes(ctx)
		if err != nil {
			return sources, fmt.Errorf("disk %s: %w", spec.name, err)
		}
		if changes != nil {
			d.Changes = &repository.Changes{Since: spec.options.Bitmap, Set: *changes}
		}
		q.Disks = append(q.Disks, d)
	}
	return sources, nil
}

func closeAll[C io.Closer](all []C) error {
	var failures []error
	for _, c := range all {
		failures = append(failures, c.Close())
	}
	return errors.Join(failures...)
}

func backupReport(name string, p repository.Progress) progress.Report {
	return progress.Report{
		Name: name, Phase: "Storing", Percent: progress.Percent(p.ReadBytes, p.PlannedBytes), ProcessedBytes: p.ReadBytes, TotalBytes: p.PlannedBytes,
		Stored: &progress.Stored{
			ScannedBytes: p.ScannedBytes, DiskBytes: p.TotalBytes, ChangedBytes: p.ChangedBytes,
			DeduplicatedBytes: p.DeduplicatedBytes, UploadedBytes: p.UploadedBytes,
		},
	}
}

func printBackup(w io.Writer, p *repository.RestorePoint) error {
	t := &table{header: []string{"DISK", "SIZE", "READ", "CHANGED", "TYPE"}}
	for _, d := range p.Disks {
		kind := "Incremental"
		if d.FullReason != "" {
			kind = fmt.Sprintf("Full (%s)", d.FullReason)
		}
		t.add(d.Name, human.Bytes(d.Bytes), human.Bytes(d.Stats.ReadBytes), human.Bytes(d.Stats.ChangedBytes), kind)
	}
	fmt.Fprintf(w, "restore point %s of %s at %s\n", p.ID, human.Line(sourceName(p.Source)), timeText(p.Time))
	return t.write(w)
}
