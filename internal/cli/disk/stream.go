package disk

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// standardOutput stands for standard output where `disk restore` takes a destination.
const standardOutput = "-"

// streamDisk writes a disk to standard output.
func streamDisk(s *repoaccess.Session, cmd *cobra.Command, id, form string, f *restoreFlags, d *session.Display) error {
	if err := f.validateStream(form); err != nil {
		return err
	}
	if file, ok := cmd.OutOrStdout().(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return failure.Usage("standard output is a terminal: send it to a file or to another program")
	}
	ctx := cmd.Context()
	return s.WithRepository(ctx, func(ctx context.Context, r *repository.Repository) error {
		p, chosen, err := findDisk(ctx, r, id, f.disk)
		if err != nil {
			return err
		}
		err = mover.WithLease(ctx, r, p.ID, s.Warn, func() error {
			return d.ShowWhile(s.Session, func(show func(progress.Report)) error {
				return mover.Stream(ctx, r, mover.StreamRequest{
					Disk: *chosen, To: cmd.OutOrStdout(), Workers: f.workers,
					Progress: func(p mover.Progress) { show(repoaccess.NewReport(chosen.Name, p)) },
				})
			})
		})
		return failure.Interrupted(ctx, err, "standard output has only the beginning of the disk", "run the same command again: it starts from the beginning")
	})
}

// validateStream refuses flags that make no sense for a stream.
func (f *restoreFlags) validateStream(form string) error {
	switch {
	case f.format == string(disk.QCOW2):
		return failure.Usage("--format qcow2: standard output takes only raw: restore to a file, then copy it")
	case f.overwrite || f.larger || f.skipEqual:
		return failure.Usage("--overwrite, --larger and --skip-equal are not for standard output")
	case f.tls != nbdTLSFlags{}:
		return failure.Usage("--tls-ca, --tls-cert and --tls-key are for a destination with an nbds:// URI")
	case form != "":
		return failure.Usage("--output %s: standard output has the disk", form)
	}
	return validateParallel(f.workers)
}
