package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/repository"
)

// maintained is the result of maintenance.
type maintained struct {
	Mode      string `json:"mode"`
	Exclusive bool   `json:"exclusive"`
	Millis    int64  `json:"millis"`
	// StoredBytesBefore and StoredBytesAfter are the sizes of all blobs.
	StoredBytesBefore int64 `json:"storedBytesBefore"`
	StoredBytesAfter  int64 `json:"storedBytesAfter"`
}

func (s *session) repoMaintenance() *cobra.Command {
	var form string
	var full, exclusive bool
	c := &cobra.Command{
		Use: "maintenance", Short: "Keep a repository small and fast",
		Long: `Maintain a repository: merge its indexes, and with --full also free what no restore point
refers to any more and extend object locks. Once an hour, and once a day with --full, are
good; backups and restores may run meanwhile.

Because another machine may have begun to use it again, what nothing refers to goes in several
runs over two days. --exclusive says that nobody else uses the repository now: it goes at once.`,
		Example: `  # Every hour
  varve repo maintenance

  # Every night
  varve repo maintenance --full

  # Free space now: nobody else is at work
  varve repo maintenance --full --exclusive`,
		Args: exactArgs(0, "no argument"), ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(*cobra.Command, []string) error {
			if exclusive && !full {
				return usage("--exclusive needs --full: only that frees anything")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.withRepository(cmd.Context(), func(r *repository.Repository) error {
				o := repository.MaintenanceOptions{Mode: repository.QuickMaintenance, Exclusive: exclusive}
				if full {
					o.Mode = repository.FullMaintenance
				}
				done := maintained{Mode: string(o.Mode), Exclusive: exclusive}
				before, err := r.Stored(cmd.Context())
				if err != nil {
					return err
				}
				start := s.Now()
				if err := r.Maintain(cmd.Context(), o); err != nil {
					return err
				}
				took := s.Now().Sub(start)
				after, err := r.Stored(cmd.Context())
				if err != nil {
					return err
				}
				done.Millis, done.StoredBytesBefore, done.StoredBytesAfter = took.Milliseconds(), bytesOf(before), bytesOf(after)
				if form != "" {
					return printData(cmd.OutOrStdout(), form, done)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s maintenance done, took %s: %s stored, %s before\n",
					done.Mode, human.Took(took), human.Bytes(done.StoredBytesAfter), human.Bytes(done.StoredBytesBefore))
				return err
			})
		},
	}
	c.Flags().BoolVar(&full, "full", false, "also free what no restore point refers to, and extend object locks")
	c.Flags().BoolVar(&exclusive, "exclusive", false, "with --full: nobody else uses the repository now, so free it at once")
	outputFlag(c, &form, asJSON, asYAML)
	return c
}

func bytesOf(blobs []repository.BlobStatus) int64 {
	return (&repository.Status{Blobs: blobs}).TotalBytes()
}
