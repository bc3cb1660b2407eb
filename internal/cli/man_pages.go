package cli

import (
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/manpage"
)

// newManPagesCommand makes `varve man-pages`, which packages use. Users do not see it.
func newManPagesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man-pages DIR", Short: "Write the manual pages of all commands into a directory", Hidden: true,
		Long:    "Write the manual pages of all commands into a directory, which is made if it does not exist.",
		Example: `  varve man-pages /usr/local/share/man/man1`,
		Args:    cmdline.ExactArgs(1, "a directory"),
		RunE:    func(c *cobra.Command, args []string) error { return manpage.WriteAll(args[0], c.Root()) },
	}
}
