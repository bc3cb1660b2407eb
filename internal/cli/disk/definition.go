package disk

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/repository"
)

func newDefinitionCommand(s *repoaccess.Session) *cobra.Command {
	return &cobra.Command{
		Use: "definition ID", Short: "Print the definition of the machine that a restore point has",
		Long: `Print what it takes to make a machine of the disks of a restore point again, as JSON. The
restore point has it if the backup stored it: those of whole machines do, and varve disk backup
does with --definition. varve disk describe says whether it is there.

The definition holds secrets in clear, for example passwords for the machine's first start. Keep
it away from logs and terminals.

The command needs the repository and its password, and nothing else. If the restore point has no
definition, the exit code is 3.`,
		Example: `  varve disk definition 5e1f9c | jq keys`,
		Args:    cmdline.ExactArgs(1, "the ID of a restore point"), ValidArgsFunction: completePoints(s, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.WithRepository(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
				point, err := restorepoint.Find(ctx, r, args[0])
				if err != nil {
					return err
				}
				definition, err := r.Definition(ctx, point)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", definition)
				return err
			})
		},
	}
}

// readDefinition reads the file that --definition names; "": none. It refuses one that cannot be stored before a disk
// is touched.
func readDefinition(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--definition: %w", err)
	}
	defer f.Close()                                //nolint:errcheck // it only reads
	const most = 2 * repository.MaxDefinitionBytes // with the spaces around it
	definition, err := io.ReadAll(io.LimitReader(f, most))
	switch {
	case err != nil:
		return nil, fmt.Errorf("--definition: %w", err)
	case len(definition) == most:
		return nil, failure.Usage("--definition %s: it is too large; the largest definition has %d bytes", path,
			repository.MaxDefinitionBytes)
	}
	if err := repository.CheckDefinition(bytes.TrimSpace(definition)); err != nil {
		return nil, fmt.Errorf("--definition %s: %w", path, err)
	}
	return definition, nil
}
