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
A disk that a running machine has open, or that is mounted, is refused, and no machine can open it
to write while it is read (QEMU's image locks; QEMU's "locking=off" switches them off).

Of a qcow2 image only the file itself is read. Its header could name any file of this host, so that
backing files are read only if --backing names them with their formats; data files never are.

What the repository has already is not stored again. Without --track or --bitmap everything that
may hold data is read.

--track has Varve keep a dirty bitmap in each qcow2 image: it adds one with a name of its own
before the image is read, and the next backup with --track reads only what that bitmap has, and
removes it once another one is in its place. No guest may have the image open during the backup;
what a guest writes before and after it is recorded.

For a running guest, --bitmap names the dirty bitmap of an NBD export that has what changed since
a checkpoint, and --checkpoint the checkpoint of this backup, whose bitmap the next one needs. It
must have been added in the same moment as the export. Both are names that varve disk checkpoint
prints: a name that is used twice, such as that of a weekday, could have one backup start from
another one's restore point. docs/quickstart-host.md has the commands for libvirt.

An incremental starts from the latest restore point of its disks. If the bitmap is not counted
from that one, or belongs to another disk, the disk is read as a whole, and TYPE says why.`,
		Example: `  varve disk backup web root=/var/lib/vms/web.img

  # A qcow2 image and a device
  varve disk backup web root=/var/lib/vms/web.qcow2 data=/dev/vg0/web --format root=qcow2

  # A qcow2 image over a raw one
  varve disk backup web root=/var/lib/vms/web.qcow2 --format qcow2 --backing raw:/var/lib/vms/base.img

  # Only what changed since the last backup with --track
  varve disk backup web root=/var/lib/vms/web.qcow2 --format qcow2 --track

  # Only what changed in a running guest: the checkpoint $next was made with the export
  varve disk backup web root='nbd+unix:///vda?socket=/run/web.sock' --bitmap $base --checkpoint $next`,
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
	backing     []string
	ignoreLocks bool
	tls         nbdTLSFlags
	checkpoint  string
	track       bool
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
	f.BoolVar(&b.track, "track", false, "keep track of what changes in qcow2 images, and read only that")
	f.StringSliceVar(&b.bitmaps, "bitmap", nil, "the dirty bitmap with what changed, for all disks or as DISK=BITMAP")
	f.StringArrayVar(&b.backing, "backing", nil, "a backing file of a qcow2 image, as [DISK=]FORMAT:PATH; once for each, from the image down")
	f.BoolVar(&b.ignoreLocks, "ignore-locks", false, "read a raw disk although a machine writes it or it is mounted; you make sure that it stands still")
	b.tls.flags(c)
	f.StringVar(&b.checkpoint, "checkpoint", "", "the checkpoint of this backup: a name that varve disk checkpoint has printed, and that was not used before")
	f.StringVar(&b.parent, "parent", repository.ParentAuto, "the restore point that changes are counted from: auto, none or an ID")
	choiceFlag(c, &b.compression, "compression", "s2", "s2, zstd or none", "s2", "zstd", "none")
	choiceFlag(c, &b.block, "block-size", "", strings.Join(repository.BlockSizes(), ", ")+": for disks without a history (default 256KiB)", repository.BlockSizes()...)
	f.IntVar(&b.workers, "parallel", repository.DefaultWorkers, "how many blocks are read and stored side by side")
	completeFixed(c, "format", string(disk.Raw), string(disk.QCOW2))
}

// diskSpec is a disk as the user specifies it.
type diskSpec struct {
	name, where string
	options     disk.SourceOptions
	// checkpoint is the name of the backup's moment, or "".
	checkpoint string
	// tracked: Varve made the bitmap, for this image alone.
	tracked bool
}

// isImage reports whether the disk is a qcow2 image in a file.
func (d *diskSpec) isImage() bool { return d.options.Format == disk.QCOW2 }

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
		out[i].checkpoint = b.checkpoint
	}
	return out, errors.Join(b.validateTracking(out), b.addBacking(out), b.addIgnoreLocks(out), b.addTLS(out))
}

// validateTracking refuses checkpoint names that could be used twice, and flags that contradict each other.
func (b *backupFlags) validateTracking(specs []diskSpec) error {
	if b.track {
		switch {
		case b.checkpoint != "" || len(b.bitmaps) > 0:
			return usage("--track chooses the bitmap and the checkpoint itself: leave --bitmap and --checkpoint out")
		case !slices.ContainsFunc(specs, func(d diskSpec) bool { return d.isImage() }):
			return usage("--track needs a qcow2 image (--format qcow2): other disks have no place for a bitmap")
		}
		return nil
	}
	if b.checkpoint != "" {
		if err := validateCheckpoint("--checkpoint", b.checkpoint); err != nil {
			return err
		}
	}
	for i := range specs {
		if bitmap := specs[i].options.Bitmap; bitmap != "" {
			if err := validateCheckpoint("--bitmap", bitmap); err != nil {
				return err
			}
		}
	}
	return nil
}

// addBacking adds what --backing says to the disks.
func (b *backupFlags) addBacking(specs []diskSpec) error {
	for _, value := range b.backing {
		name, file := "", value
		if !strings.HasPrefix(value, string(disk.Raw)+":") && !strings.HasPrefix(value, string(disk.QCOW2)+":") {
			name, file, _ = strings.Cut(value, "=")
		}
		format, path, _ := strings.Cut(file, ":")
		if f := disk.Format(format); path == "" || f != disk.Raw && f != disk.QCOW2 {
			return usage("--backing %s: use FORMAT:PATH, such as raw:/path, or DISK=FORMAT:PATH", value)
		}
		at := slices.IndexFunc(specs, func(d diskSpec) bool { return d.name == name || name == "" && len(specs) == 1 })
		switch {
		case at < 0 && name == "":
			return usage("--backing %s: there are several disks: use DISK=FORMAT:PATH", value)
		case at < 0:
			return usage("--backing %s: no disk is called %s", value, name)
		case specs[at].options.Format != disk.QCOW2:
			return usage("--backing %s: disk %s has no --format qcow2, and only qcow2 images have backing files", value, specs[at].name)
		}
		specs[at].options.Backing = append(specs[at].options.Backing, disk.BackingFile{Format: disk.Format(format), Path: path})
	}
	return nil
}

// addIgnoreLocks adds --ignore-locks to the disks whose locks can be ignored.
func (b *backupFlags) addIgnoreLocks(specs []diskSpec) error {
	found := !b.ignoreLocks
	for i := range specs {
		if b.ignoreLocks && specs[i].options.Format != disk.QCOW2 && !disk.IsURI(specs[i].where) {
			specs[i].options.IgnoreLocks, found = true, true
		}
	}
	if !found {
		return usage("--ignore-locks: no disk is a raw file or device; read a qcow2 image that is in use through an NBD export")
	}
	return nil
}

// addTLS adds the TLS configuration to the disks that need it.
func (b *backupFlags) addTLS(specs []diskSpec) error {
	var wheres []string
	for _, d := range specs {
		wheres = append(wheres, d.where)
	}
	config, err := b.tls.config(wheres...)
	for i := range specs {
		if overTLS(specs[i].where) {
			specs[i].options.TLS = config
		}
	}
	return err
}

// validFormat refuses an unknown --format. It also refuses a missing one if the file's name suggests qcow2.
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

// perDisk reads values that apply to all disks, or as DISK=VALUE to one.
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
		var t *imageTracking
		err = d.during(s, func(show func(progress.Report)) (err error) {
			show(progress.Report{Name: name, Phase: "Opening", Message: "the disks"})
			q := repository.Request{
				Source: r.Source(b.source.host, b.source.user, sourcePath(name)), Parent: parent, BlockBytes: block, Compression: b.compression, Workers: b.workers,
				Progress: func(p repository.Progress) { show(backupReport(name, p)) },
			}
			if b.track {
				if t, err = startTracking(ctx, r, &q, specs); err != nil {
					return err
				}
			}
			sources, err := openSources(ctx, specs, &q)
			if err == nil {
				point, err = r.Backup(ctx, q)
			}
			return errors.Join(err, closeAll(sources))
		})
		if t != nil {
			s.warnOf(t.doubts)
		}
		if err != nil {
			return interrupted(ctx, err, "no restore point of "+human.Line(name)+" was made", "the same command again stores what is missing")
		}
		if t != nil {
			s.warnOf(t.removeOthers(ctx))
		}
		if form != "" {
			return printPoints(w, form, []*repository.RestorePoint{point})
		}
		return printBackup(w, point)
	})
}

// parentOf returns what --parent asks for, with the whole ID.
func parentOf(ctx context.Context, r *repository.Repository, text string) (string, error) {
	if text == repository.ParentAuto || text == repository.ParentNone {
		return text, nil
	}
	p, err := findPoint(ctx, r, text)
	if err != nil {
		return "", fmt.Errorf("--parent: %w", err)
	}
	return p.ID, nil
}

// openSources opens the disks and adds them to the request. It returns what it has opened even if it fails.
func openSources(ctx context.Context, specs []diskSpec, q *repository.Request) ([]disk.Source, error) {
	var sources []disk.Source
	for _, spec := range specs {
		if err := spec.hasCheckpoint(ctx); err != nil {
			return sources, fmt.Errorf("disk %s: %w", spec.name, err)
		}
		source, err := disk.OpenSource(ctx, spec.where, spec.options)
		if err != nil {
			return sources, diskFailure(fmt.Errorf("disk %s: %w", spec.name, err))
		}
		sources = append(sources, source)
		d := repository.DiskSource{Name: spec.name, Bytes: source.Bytes(), Reader: source, Identity: source.Identity(), Change: spec.checkpoint}
		if d.Data, err = source.Data(ctx); err != nil {
			return sources, fmt.Errorf("disk %s: %w", spec.name, err)
		}
		changes, err := source.Changes(ctx)
		if err != nil {
			return sources, fmt.Errorf("disk %s: %w", spec.name, err)
		}
		if changes != nil {
			d.Changes = &repository.Changes{Since: spec.options.Bitmap, Set: *changes, Exclusive: spec.tracked}
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
