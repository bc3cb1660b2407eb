package repo

import (
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/damage"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/session"
)

func newCheckCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var d session.Display
	c := &cobra.Command{
		Use: "check", Short: "Check that every block is present, without reading the data",
		Long: `Check a repository without reading the data: the indexes load, and every block of every
restore point is in a blob that exists and is long enough. varve disk verify also reads the data.

Damage is a failure (exit code 1). The command lists the damaged parts of disks with their
restore points; -o json also lists the restore points that are good.`,
		Example: `  varve repo check

  # Restore points that are good
  varve repo check -o json | jq -r '.good[].id'`,
		Args: cmdline.ExactArgs(0, "no argument"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return damage.Check(cmd.Context(), s, cmd.OutOrStdout(), form, 0, &d)
		},
	}
	d.AddFlag(c, "while checking")
	output.AddFlag(c, &form, output.AsTable, output.AsJSON, output.AsYAML)
	return c
}
