package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository"
)

// restoreFlags are the flags of `disk restore`.
type restoreFlags struct {
	disk, format      string
	overwrite, larger bool
	workers           int
	tls               nbdTLSFlags
	// tlsConfig is the configuration that tls describes.
	tlsConfig *tls.Config
}

func (s *session) diskRestore() *cobra.Command {
	var form string
	var d display
	var f restoreFlags
	c := &cobra.Command{
		Use: "restore ID WHERE", Short: "Write a disk of a restore point to a file, a device or an NBD export",
		Long: `Write a disk of a restore point to WHERE: a file, which is created sparse, a block device, or an
NBD URI. Every block is checked before it is written, and what cannot be read ends the restore.

A restore that was interrupted goes on where it ended if it is started again: a journal beside
the file says what was finished. A target that has content is refused without --overwrite.

The restore point can be deleted meanwhile: a lease keeps what it holds, but not on a
connection for reading only.`,
		Example: `  varve disk restore 5e1f9c /var/lib/vms/web.img

  # One of several disks, to a device that has content
  varve disk restore 5e1f9c /dev/vg0/data --disk data --overwrite

  # As a qcow2 image
  varve disk restore 5e1f9c /var/lib/vms/web.qcow2 --format qcow2`,
		Args: exactArgs(2, "the ID of a restore point and where to write the disk"), ValidArgsFunction: s.completePointThenFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.restoreDisk(cmd.Context(), cmd.OutOrStdout(), form, args[0], args[1], &f, &d)
		},
	}
	s.diskFlag(c, &f.disk)
	choiceFlag(c, &f.format, "format", "", "the format to write, raw or qcow2 (default raw; needed for a name that ends in .qcow2)", string(disk.Raw), string(disk.QCOW2))
	c.Flags().BoolVar(&f.overwrite, "overwrite", false, "write over what the target has")
	c.Flags().BoolVar(&f.larger, "larger", false, "accept a device that is larger than the disk; its rest stays as it is")
	c.Flags().IntVar(&f.workers, "parallel", repository.DefaultWorkers, "how many regions are fetched and written side by side")
	f.tls.flags(c)
	d.flags(c, "while writing")
	outputFlag(c, &form, asJSON, asYAML)
	return c
}

// restored is the result of a restore.
type restored struct {
	ID     string `json:"id"`
	Disk   string `json:"disk"`
	Target string `json:"target"`
	Bytes  int64  `json:"bytes"`
	// ResumedBytes were already there, from an earlier restore that was interrupted.
	ResumedBytes int64  `json:"resumedBytes"`
	Digest       string `json:"digest"`
}

// pointDisk finds a restore point and one of its disks. name may be empty if there is only one.
func pointDisk(ctx context.Context, r *repository.Repository, id, name string) (*repository.RestorePoint, *repository.Disk, error) {
	p, err := findPoint(ctx, r, id)
	if err != nil {
		return nil, nil, err
	}
	d, err := oneDisk(p, name)
	return p, d, err
}

func (s *session) restoreDisk(ctx context.Context, w io.Writer, form, id, where string, f *restoreFlags, d *display) error {
	if err := validFormat(where, f.format); err != nil {
		return err
	}
	if err := atWork(f.workers); err != nil {
		return err
	}
	var err error
	if f.tlsConfig, err = f.tls.config(where); err != nil {
		return err
	}
	return s.withRepository(ctx, func(r *repository.Repository) error {
		p, chosen, err := pointDisk(ctx, r, id, f.disk)
		if err != nil {
			return err
		}
		out := restored{ID: p.ID, Disk: chosen.Name, Target: where, Bytes: chosen.Bytes, Digest: chosen.Digest}
		err = s.underLease(ctx, r, p.ID, func() error {
			return d.during(s, func(show func(progress.Report)) (err error) {
				out.ResumedBytes, err = writeDisk(ctx, r, *chosen, where, f, show)
				return err
			})
		})
		if err != nil {
			return err
		}
		if form != "" {
			return printData(w, form, out)
		}
		resumed := ""
		if out.ResumedBytes > 0 {
			resumed = fmt.Sprintf(" (%s were there already)", human.Bytes(out.ResumedBytes))
		}
		fmt.Fprintf(w, "disk %s of restore point %s: %s in %s%s\n", human.Line(out.Disk), out.ID, human.Bytes(out.Bytes), human.Line(where), resumed)
		return nil
	})
}

// writeDisk restores a disk, and returns how much of it an earlier restore had already written.
func writeDisk(ctx context.Context, r *repository.Repository, chosen repository.Disk, where string, f *restoreFlags, show func(progress.Report)) (int64, error) {
	image, err := r.Image(ctx, chosen)
	if err != nil {
		return 0, err
	}
	total, err := image.DataBytes(ctx, nil)
	if err != nil {
		return 0, err
	}
	journal, err := disk.NewJournal(disk.JournalOptions{Token: chosen.Digest, RegionBytes: image.RegionBytes()})
	if err != nil {
		return 0, err
	}
	target, err := disk.OpenTarget(ctx, where, chosen.Bytes, disk.TargetOptions{
		Format: disk.Format(f.format), Overwrite: f.overwrite, Larger: f.larger, DataBytes: total, Journal: journal, TLS: f.tlsConfig,
	})
	if err != nil {
		return 0, diskFailure(err)
	}
	resumed := journal.DoneBytes()
	if err := fill(ctx, image, target, journal, f.workers, total, show); err != nil {
		kept := journal.Save(context.WithoutCancel(ctx), target)
		if errors.Is(err, errclass.Exhausted) && errors.Is(kept, errclass.Exhausted) {
			kept = nil // The previous checkpoint counts.
		}
		closed := target.Close()
		if kept == nil && closed == nil {
			err = interrupted(ctx, err, human.Line(where)+" is not complete", onceMore(journal))
		}
		return resumed, errors.Join(err, kept, closed)
	}
	if err := target.Close(); err != nil {
		return resumed, err
	}
	return resumed, journal.Remove()
}

// onceMore says what the same command does if it is run again.
func onceMore(journal *disk.Journal) string {
	if journal.Kept() {
		return "the same command again goes on where this one ended"
	}
	return "the same command again begins anew: a device or an NBD export has no journal"
}

// fill writes what the journal does not have yet. total is how much data the disk has.
func fill(ctx context.Context, image *repository.Image, target disk.Target, journal *disk.Journal, workers int, total int64, show func(progress.Report)) error {
	left := total
	if journal.DoneBytes() > 0 {
		var err error
		if left, err = image.DataBytes(ctx, journal.Done); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	n := total - left
	tell := func(wrote int64) {
		mu.Lock()
		defer mu.Unlock()
		n += wrote
		show(progress.Report{Name: image.Disk.Name, Phase: "Writing", Percent: progress.Percent(n, total), ProcessedBytes: n, TotalBytes: total})
	}
	tell(0)
	return image.Restore(ctx, target, repository.RestoreOptions{
		Workers: workers, Done: journal.Done, Wrote: tell,
		Finished: func(region int, _ extent.Extent) { journal.Finished(ctx, target, region) },
	})
}
