package repo

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository"
)

func newRepairCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var yes, dryRun bool
	c := &cobra.Command{
		Use: "repair", Short: "Repair a repository whose indexes, manifests or format are damaged",
		Long: `Repair everything but data: the format from its copy, indexes from the packs, and lost restore
points from their records. Nothing that can be read is removed. Damaged data cannot be repaired:
varve disk verify lists the restore points that have it. The next backup of a disk that still has
that data stores it again, and those restore points are whole again.

No backup and no maintenance may run at the same time. Use --dry-run first. Without it, the command
shows what it would do and asks; without a terminal, it needs --yes.`,
		Example: `  varve repo repair --dry-run

  # In a script
  varve repo repair --yes`,
		Args: cmdline.ExactArgs(0, "no argument"), ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(*cobra.Command, []string) error {
			if !yes && !dryRun && s.Streams.ReadPassword == nil {
				return failure.Usage("without a terminal, repairing needs --yes or --dry-run")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.WithPassword(cmd.Context(), func(config, password string) error {
				return repairRepository(cmd.Context(), s, cmd.OutOrStdout(), cmd.ErrOrStderr(), form, config, password, yes, dryRun)
			})
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be done")
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML)
	return c
}

func repairRepository(ctx context.Context, s *repoaccess.Session, out, errOut io.Writer, form, config, password string, yes, dryRun bool) error {
	if !yes && !dryRun {
		would, err := repository.Repair(ctx, config, password, true)
		if err != nil {
			return err
		}
		if would.Nothing() {
			return printRepair(out, form, would, false)
		}
		if err := printRepair(errOut, "", would, true); err != nil {
			return err
		}
		if err := s.Confirm(ctx, "Repair the repository?"); err != nil {
			return err
		}
	}
	report, err := repository.Repair(ctx, config, password, dryRun)
	if err != nil {
		return err
	}
	if err := printRepair(out, form, report, dryRun); err != nil {
		return err
	}
	if len(report.Lost) > 0 {
		return &failure.Error{
			Err: fmt.Errorf("restore points lost: %d", len(report.Lost)), Code: errclass.ExitFailure,
			Hint: "maintenance frees nothing until `varve disk delete` with their whole IDs removes their records",
		}
	}
	return nil
}

func printRepair(w io.Writer, form string, r *repository.RepairReport, would bool) error {
	if form != "" {
		return output.PrintData(w, form, r)
	}
	if r.Nothing() && len(r.Packs) == 0 {
		_, err := fmt.Fprintln(w, "there is nothing to repair")
		return err
	}
	verbs := strings.NewReplacer("{put}", "put", "{removed}", "removed", "{stored}", "stored", "{found}", "found")
	if would {
		verbs = strings.NewReplacer("{put}", "would put", "{removed}", "would remove", "{stored}", "would store", "{found}", "would find")
	}
	var lines []string
	each := func(text string, names []string) {
		for _, name := range names {
			lines = append(lines, verbs.Replace(text)+" "+name)
		}
	}
	each("{put} back from its copy: blob", r.Format)
	each("{removed} what cannot be read: index", r.Indexes)
	each("{removed} what cannot be read: manifests", r.Manifests)
	if r.Contents > 0 {
		lines = append(lines, fmt.Sprintf("%s %d contents again that no index named", verbs.Replace("{found}"), r.Contents))
	}
	each("{stored} the record again: restore point", r.Records)
	each("{put} back from its record: restore point", r.Points)
	for _, p := range r.Lost {
		lines = append(lines, fmt.Sprintf("lost: restore point %s: %s", p.ID, p.Reason))
	}
	for _, name := range r.Packs {
		lines = append(lines, "missing, too short or damaged: blob "+name)
	}
	if len(r.Packs) > 0 {
		lines = append(lines, "such data cannot be repaired: `varve disk verify` lists the restore points that lack it; the next backup stores again what the disks still have of it")
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}
