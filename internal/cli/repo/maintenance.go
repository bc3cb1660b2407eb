package repo

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/repository"
)

// maintenanceResult is the result of maintenance.
type maintenanceResult struct {
	Mode      string `json:"mode"`
	Exclusive bool   `json:"exclusive"`
	Millis    int64  `json:"millis"`
	// StoredBytesBefore and StoredBytesAfter are the sizes of all blobs.
	StoredBytesBefore int64 `json:"storedBytesBefore"`
	StoredBytesAfter  int64 `json:"storedBytesAfter"`
}

func newMaintenanceCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var d session.Display
	var full, exclusive bool
	c := &cobra.Command{
		Use: "maintenance", Short: "Keep a repository small and fast",
		Long: `Maintain a repository: merge its indexes, and remove incomplete files of processes that were
killed. With --full, also free data that no restore point refers to, and extend object locks.
Run it once an hour, and once a day with --full. Backups and restores may run at the same time.

Unused data is freed in several runs over two days, because another machine may have begun to use
it again. With --exclusive, it is freed at once: nobody else may use the repository. --exclusive
refuses to start while a backup runs, and no backup starts while it runs. Incomplete files are
removed after four days, or with --exclusive after an hour.`,
		Example: `  # Every hour
  varve repo maintenance

  # Every night
  varve repo maintenance --full

  # Free space now; nobody else uses the repository
  varve repo maintenance --full --exclusive`,
		Args: cmdline.ExactArgs(0, "no argument"), ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(*cobra.Command, []string) error {
			if exclusive && !full {
				return failure.Usage("--exclusive needs --full, which is what frees data")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := repository.MaintenanceOptions{Mode: repository.QuickMaintenance, Exclusive: exclusive}
			if full {
				o.Mode = repository.FullMaintenance
			}
			return s.WithWritable(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
				var done *maintenanceResult
				var warnings []error
				o.Warn = func(err error) { warnings = append(warnings, err) } // Nobody else may write while the progress is shown.
				err := d.ShowWhile(s.Session, func(show func(progress.Report)) (err error) {
					done, err = runMaintenance(ctx, s, r, o, show)
					return err
				})
				for _, warning := range warnings {
					s.Warn(warning)
				}
				if err != nil {
					return err
				}
				return done.printResult(cmd.OutOrStdout(), form)
			})
		},
	}
	c.Flags().BoolVar(&full, "full", false, "also free data that no restore point refers to, and extend object locks")
	c.Flags().BoolVar(&exclusive, "exclusive", false, "with --full: free it at once; nobody else may use the repository")
	d.AddFlag(c, "while it works")
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML)
	return c
}

// maintenanceSteps describe the steps, in a word and as a message.
var maintenanceSteps = map[repository.MaintenanceStep][2]string{
	repository.StepCollect: {"Collecting", "what no restore point refers to"},
	repository.StepCompact: {"Compacting", "indexes and packs"},
}

func runMaintenance(ctx context.Context, s *repoaccess.Session, r *repository.Repository, o repository.MaintenanceOptions, show func(progress.Report)) (*maintenanceResult, error) {
	tell := func(phase, message string) {
		show(progress.Report{Name: "repository", Phase: phase, Message: message})
	}
	o.Step = func(step repository.MaintenanceStep) { tell(maintenanceSteps[step][0], maintenanceSteps[step][1]) }
	tell("Counting", "what is stored")
	before, err := r.Stored(ctx)
	if err != nil {
		return nil, err
	}
	start := s.Now()
	if err := r.Maintain(ctx, o); err != nil {
		return nil, err
	}
	took := s.Now().Sub(start)
	tell("Counting", "what is stored now")
	after, err := r.Stored(ctx)
	if err != nil {
		return nil, err
	}
	return &maintenanceResult{
		Mode: string(o.Mode), Exclusive: o.Exclusive, Millis: took.Milliseconds(), StoredBytesBefore: sumBytes(before), StoredBytesAfter: sumBytes(after),
	}, nil
}

func (m *maintenanceResult) printResult(w io.Writer, form string) error {
	if form != "" {
		return output.PrintData(w, form, m)
	}
	_, err := fmt.Fprintf(w, "%s maintenance done, took %s: %s stored, %s before\n",
		m.Mode, human.Took(time.Duration(m.Millis)*time.Millisecond), human.Bytes(m.StoredBytesAfter), human.Bytes(m.StoredBytesBefore))
	return err
}

func sumBytes(blobs []repository.BlobStatus) int64 {
	return (&repository.Status{Blobs: blobs}).TotalBytes()
}
