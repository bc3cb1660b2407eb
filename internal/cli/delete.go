package cli

import (
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

// deleting describes a `delete` command for one kind.
type deleting struct {
	noun, argument       string
	short, long, example string
	object               func() client.Object
	newList              func() client.ObjectList
	// state returns an object's phase and message while it is being deleted.
	state func(client.Object) (phase, message string)
}

func (s *clusterSession) delete(d deleting) *cobra.Command {
	var w waiting
	c := &cobra.Command{
		Use: "delete NAME...", Aliases: []string{"rm"}, Short: d.short, Long: d.long, Example: d.example,
		Args: cmdline.AtLeastOne(d.argument), ValidArgsFunction: s.completeArgs(d.newList, 1<<10),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.connect()
			if err != nil {
				return err
			}
			// A name that does not exist must not stop the others. Failures are reported at the end.
			var failures []error
			var deleted []client.Object
			for _, name := range args {
				object, err := d.one(cmd, c, name)
				if err != nil {
					failures = append(failures, err)
					continue
				}
				deleted = append(deleted, object)
			}
			for _, object := range deleted {
				if !w.wait {
					break
				}
				err := w.run(cmd.Context(), s, d.noun+" "+object.GetName()+" is gone", d.noun+" describe "+object.GetName(), d.untilGone(c, object))
				failures = append(failures, err)
			}
			return errors.Join(failures...)
		},
	}
	w.flags(c, "they and everything that they left are gone", deleteTimeout)
	return c
}

// one deletes one object and returns it.
func (d deleting) one(cmd *cobra.Command, c *cluster.Client, name string) (client.Object, error) {
	object := d.object()
	if err := c.Get(cmd.Context(), client.ObjectKey{Namespace: c.Namespace, Name: name}, object); err != nil {
		return nil, fmt.Errorf("delete %s %s: %w", d.noun, name, err)
	}
	uid := object.GetUID()
	// Delete only the object that was read. One of the same name that was created since then stays.
	if err := c.Delete(cmd.Context(), object, client.Preconditions{UID: &uid}); err != nil {
		return nil, fmt.Errorf("delete %s %s: %w", d.noun, name, err)
	}
	return object, output.PrintDone(cmd.OutOrStdout(), object, "deleted")
}

func (d deleting) untilGone(c *cluster.Client, object client.Object) showing {
	uid := object.GetUID()
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(object), d.object(), d.newList(), func(o client.Object, exists bool) (bool, error) {
			if !exists || o.GetUID() != uid {
				show(progress.Report{Name: object.GetName(), Phase: "Deleted"})
				return true, nil
			}
			phase, message := d.state(o)
			show(progress.Report{Name: object.GetName(), Phase: "Deleting", Message: message + " (" + phase + ")"})
			return false, nil
		})
	}
}
