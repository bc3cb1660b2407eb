package resource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
)

// deleteTimeout is the default of --timeout, enough for an abort and its clean-up.
const deleteTimeout = 10 * time.Minute

// Deletion describes a `delete` command for one kind.
type Deletion struct {
	Noun, Argument       string
	Short, Long, Example string
	Object               func() client.Object
	NewList              func() client.ObjectList
	// State returns an object's phase and message while it is being deleted.
	State func(client.Object) (phase, message string)
	// Describe is the command that shows what a deletion waits for, without the object's name. Default: "NOUN describe".
	Describe string
	// Gone says what went with an object that is gone, as it was before. It may be nil.
	Gone func(client.Object) string
	// Prepare does what comes before an object is deleted, and may wait for it. It may be nil.
	Prepare func(*cobra.Command, *cluster.Client, client.Object, *Waiting) error
	// Kept says what outlives an object that is being deleted. It is asked before that, and may be nil.
	Kept func(context.Context, *cluster.Client, client.Object) (string, error)
}

// DeleteCommand makes a `delete` command.
func (s *Session) DeleteCommand(d Deletion) *cobra.Command {
	var w Waiting
	c := &cobra.Command{
		Use: "delete NAME...", Aliases: []string{"rm"}, Short: d.Short, Long: d.Long, Example: d.Example,
		Args: cmdline.AtLeastOne(d.Argument), ValidArgsFunction: s.CompleteArgs(d.NewList, 1<<10),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			// A name that does not exist must not stop the others. Failures are reported at the end.
			var failures []error
			var deleted []client.Object
			for _, name := range args {
				object, err := d.deleteOne(cmd, c, name, &w)
				if err != nil {
					failures = append(failures, err)
					continue
				}
				deleted = append(deleted, object)
			}
			for _, object := range deleted {
				if !w.Wait {
					break
				}
				describe := cmp.Or(d.Describe, d.Noun+" describe") + " " + object.GetName()
				err := w.Run(cmd.Context(), s, d.Noun+" "+object.GetName()+" is gone", describe, d.untilGone(c, object))
				if err == nil && d.Gone != nil {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), d.Gone(object))
				}
				failures = append(failures, err)
			}
			return errors.Join(failures...)
		},
	}
	w.AddFlags(c, "they and everything that they left are gone", deleteTimeout)
	return c
}

// deleteOne deletes one object and returns it.
func (d Deletion) deleteOne(cmd *cobra.Command, c *cluster.Client, name string, w *Waiting) (client.Object, error) {
	object := d.Object()
	if err := c.Get(cmd.Context(), client.ObjectKey{Namespace: c.Namespace, Name: name}, object); err != nil {
		return nil, fmt.Errorf("delete %s %s: %w", d.Noun, name, err)
	}
	if d.Prepare != nil {
		if err := d.Prepare(cmd, c, object, w); err != nil {
			return nil, fmt.Errorf("delete %s %s: %w", d.Noun, name, err)
		}
	}
	kept := ""
	if d.Kept != nil {
		var err error
		if kept, err = d.Kept(cmd.Context(), c, object); err != nil {
			return nil, fmt.Errorf("delete %s %s: %w", d.Noun, name, err)
		}
	}
	uid := object.GetUID()
	// Delete only the object that was read. One of the same name that was created since then stays.
	if err := c.Delete(cmd.Context(), object, client.Preconditions{UID: &uid}); err != nil {
		return nil, fmt.Errorf("delete %s %s: %w", d.Noun, name, err)
	}
	err := output.PrintDone(cmd.OutOrStdout(), object, "deleted")
	if err == nil && kept != "" {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), kept)
	}
	return object, err
}

func (d Deletion) untilGone(c *cluster.Client, object client.Object) WaitFunc {
	uid := object.GetUID()
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(object), d.Object(), d.NewList(), func(o client.Object, exists bool) (bool, error) {
			if !exists || o.GetUID() != uid {
				show(progress.Report{Name: object.GetName(), Phase: "Deleted"})
				return true, nil
			}
			phase, message := d.State(o)
			show(progress.Report{Name: object.GetName(), Phase: "Deleting", Message: message + " (" + phase + ")"})
			return false, nil
		})
	}
}
