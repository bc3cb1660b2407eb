package disk

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/damage"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/session"
)

func newVerifyCommand(s *repoaccess.Session) *cobra.Command {
	var form string
	var d session.Display
	percent := percentage(100)
	c := &cobra.Command{
		Use: "verify", Short: "Read the stored data, and list the restore points that are damaged",
		Long: `Read, decrypt and hash the stored data: all of it, or with --percent a different random
part each time. Data that several restore points share is read once. The command always checks
what varve repo check checks.

Damage is a failure (exit code 1). The command lists the damaged parts of disks with their
restore points; -o json also lists the restore points that are good.`,
		Example: `  varve disk verify

  # Read a part, and show progress for a program
  varve disk verify --percent 10 --progress json`,
		Args: cmdline.ExactArgs(0, "no argument"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return damage.Check(cmd.Context(), s, cmd.OutOrStdout(), form, float64(percent), &d)
		},
	}
	c.Flags().Var(&percent, "percent", "how much of the data is read, from 0 to 100")
	d.AddFlag(c, "while reading")
	output.AddFlag(c, &form, output.AsTable, output.AsJSON, output.AsYAML)
	return c
}

// percentage is a flag's value from 0 to 100.
type percentage float64

func (p *percentage) String() string { return strconv.FormatFloat(float64(*p), 'f', -1, 64) }

func (*percentage) Type() string { return "percent" }

func (p *percentage) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= 0 && n <= 100) {
		return failure.Usage("give a number from 0 to 100")
	}
	*p = percentage(n)
	return nil
}
