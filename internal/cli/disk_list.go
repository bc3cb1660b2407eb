package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/repository"
)

func (s *session) diskList() *cobra.Command {
	var form string
	var f sourceFlags
	c := &cobra.Command{
		Use: "list [NAME]", Aliases: []string{"ls"}, Short: "List restore points",
		Long: `List restore points, oldest first, of one name or of all: the disks, their size, how much
changed since the parent, and whether they were read as a whole and why.

-o wide adds the whole ID, the user and the parent.`,
		Example: `  varve disk list

  # One history
  varve disk list web --host host1

  # The latest restore point
  varve disk list web -o name | tail -1`,
		Args: maxArgs(1, "at most the name of a history"), ValidArgsFunction: s.completeHistory(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.withRepository(cmd.Context(), func(r *repository.Repository) error {
				l, err := listPoints(cmd.Context(), r)
				if err != nil {
					return err
				}
				var points []*repository.RestorePoint
				for _, p := range l.points {
					if f.selects(p.Source, args) {
						points = append(points, p)
					}
				}
				switch {
				case form == asJSON || form == asYAML || form == asName:
					err = printPoints(cmd.OutOrStdout(), form, points)
				case len(points) == 0:
					fmt.Fprintln(cmd.ErrOrStderr(), "No restore points of this kind in the repository.")
				default:
					err = pointTable(l, points, form == asWide).write(cmd.OutOrStdout())
				}
				if err != nil {
					return err
				}
				// What cannot be read may be what was looked for.
				return l.unreadable
			})
		},
	}
	f.flags(c, "only restore points")
	outputFlag(c, &form, asTable, asWide, asJSON, asYAML, asName)
	return c
}
