package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/restorepoint"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// defaultPin is the name of a pin for which the user gave none.
const defaultPin = "pinned"

func newPinCommand(s *repoaccess.Session) *cobra.Command {
	var form, name string
	c := &cobra.Command{
		Use: "pin ID...", Short: "Keep restore points until they are unpinned",
		Long: `Pin restore points: neither prune nor delete removes a pinned one. A restore point may have several
pins, each with a name.`,
		Example: `  varve disk pin 5e1f9c

  # With a reason
  varve disk pin 5e1f9c --name before-upgrade`,
		Args: cmdline.AtLeastOne("the IDs of restore points"), ValidArgsFunction: completePoints(s, 1<<10),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changePins(s, cmd, args, form, func(*repository.RestorePoint) (add, remove []string, err error) {
				return []string{name}, nil, nil
			})
		},
	}
	c.Flags().StringVar(&name, "name", defaultPin, "the pin's name")
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

func newUnpinCommand(s *repoaccess.Session) *cobra.Command {
	var form, name string
	var all bool
	c := &cobra.Command{
		Use: "unpin ID...", Short: "Remove pins from restore points",
		Long: `Remove a pin by its name, or with --all every pin, from restore points. From then on, the rules
of varve disk prune decide how long they are kept.`,
		Example: `  varve disk unpin 5e1f9c --name before-upgrade

  varve disk unpin 5e1f9c --all`,
		Args: cmdline.AtLeastOne("the IDs of restore points"), ValidArgsFunction: completePoints(s, 1<<10),
		PreRunE: func(c *cobra.Command, _ []string) error {
			if all && c.Flags().Changed("name") {
				return failure.Usage("--all and --name exclude each other")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return changePins(s, cmd, args, form, func(p *repository.RestorePoint) (add, remove []string, err error) {
				switch {
				case all:
					return nil, p.Pins, nil
				case slices.Contains(p.Pins, name):
					return nil, []string{name}, nil
				}
				hint := "it has no pins"
				if p.Pinned() {
					hint = "it has the pins " + joinNames(p.Pins) + ": select one with --name, or --all"
				}
				return nil, nil, &failure.Error{Err: fmt.Errorf("restore point %s has no pin %q", p.ID, name), Code: errclass.ExitNotFound, Hint: hint}
			})
		},
	}
	c.Flags().StringVar(&name, "name", defaultPin, "the pin's name")
	c.Flags().BoolVar(&all, "all", false, "remove every pin")
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

// changePins changes the pins of each restore point as change says, and prints them. If change refuses one, nothing is
// changed.
func changePins(s *repoaccess.Session, cmd *cobra.Command, args []string, form string, change func(*repository.RestorePoint) (add, remove []string, err error)) error {
	return s.WithWritable(cmd.Context(), func(ctx context.Context, r *repository.Repository) error {
		l, ids, err := restorepoint.ReadNamed(ctx, r, args...)
		if err != nil {
			return err
		}
		points, err := l.FindAll(ids)
		if err != nil {
			return err
		}
		for _, p := range points {
			if _, _, err := change(p); err != nil {
				return err
			}
		}
		var out []*repository.RestorePoint
		var failures []error
		for _, p := range points {
			add, remove, err := change(p)
			if err == nil {
				p, err = r.Pin(ctx, p.ID, add, remove)
			}
			if err != nil {
				failures = append(failures, err)
				continue
			}
			out = append(out, p)
		}
		return errors.Join(append(failures, printPins(cmd.OutOrStdout(), form, out))...)
	})
}

func printPins(w io.Writer, form string, points []*repository.RestorePoint) error {
	if form != "" {
		return restorepoint.Print(&output.Printer{Out: w, Form: form}, points)
	}
	for _, p := range points {
		fmt.Fprintf(w, "restore point %s of %s: pins %s\n", p.ID, human.Line(mover.HistoryName(p.Source)), human.Or(human.Line(joinNames(p.Pins))))
	}
	return nil
}
