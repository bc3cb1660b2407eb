package data

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// cancelTimeout is the default of --timeout.
const cancelTimeout = 5 * time.Minute

func newCancelCommand(s *resource.Session, k kind) *cobra.Command {
	var w resource.Waiting
	c := &cobra.Command{
		Use: "cancel NAME...", Short: "Cancel " + k.noun + "s",
		Long: `Cancel ` + k.noun + `s that have not ended. What was made for them is removed. A cancelled ` + k.noun + `
cannot be continued.`,
		Example: `  varve data ` + k.noun + ` cancel nightly-x7k2p -n velero --wait`,
		Args:    cmdline.AtLeastOne("the name of " + article(k.noun)), ValidArgsFunction: s.CompleteArgs(k.newList, 1<<10),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			// One that cannot be cancelled must not stop the others.
			var failures []error
			for _, name := range args {
				failures = append(failures, k.cancelOne(cmd, s, c, name, &w))
			}
			return errors.Join(failures...)
		},
	}
	w.AddFlags(c, "they have ended", cancelTimeout)
	return c
}

func (k kind) cancelOne(cmd *cobra.Command, s *resource.Session, c *cluster.Client, name string, w *resource.Waiting) error {
	m, err := k.get(cmd.Context(), c, name)
	if err != nil {
		return err
	}
	if m.phase.Ended() {
		return failure.New("", "cancel %s %s: it has ended: %s", k.noun, name, m.phase)
	}
	// The UID keeps the request from another object of the same name.
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"cancel":true}}`, m.object.GetUID())
	if err := c.Patch(cmd.Context(), m.object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("cancel %s %s: %w", k.noun, name, err)
	}
	if err := output.PrintDone(cmd.OutOrStdout(), m.object, "asked to cancel"); err != nil {
		return err
	}
	if !w.Wait {
		return nil
	}
	return w.Run(cmd.Context(), s, k.noun+" "+name+" has ended", "data "+k.noun+" describe "+name, k.untilCanceled(c, m.object))
}

// untilCanceled waits for the end of an object. One that completes before the request is seen is a failure: it was not cancelled.
func (k kind) untilCanceled(c *cluster.Client, object client.Object) resource.WaitFunc {
	uid, name := object.GetUID(), object.GetName()
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(object), k.object(), k.newList(), func(o client.Object, exists bool) (bool, error) {
			if !exists || o.GetUID() != uid {
				return true, nil
			}
			m := newMovement(o)
			show(m.report())
			switch m.phase {
			case velerov2.PhaseCompleted:
				return false, failure.New("", "%s %s was not cancelled: it completed before", k.noun, name)
			case velerov2.PhaseCanceled, velerov2.PhaseFailed:
				return true, nil
			default:
				return false, nil
			}
		})
	}
}
