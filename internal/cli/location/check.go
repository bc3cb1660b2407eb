package location

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/location"
)

// checkTimeout is the default of --timeout: the intervals at which Velero tries a location are a minute.
const checkTimeout = 3 * time.Minute

func newCheckCommand(s *resource.Session) *cobra.Command {
	var w resource.Waiting
	c := &cobra.Command{
		Use: "check NAME", Short: "Try a location now, and say whether it can be used",
		Long: `Try a location now, and wait for the answer. The command succeeds if the location can be used.

The controller tries it, from the cluster. A location in Velero's namespace is tried by Velero, at
its next interval.`,
		Example: `  varve location check default -n varve`,
		Args:    cmdline.ExactArgs(1, "the name of a location"), ValidArgsFunction: s.CompleteArgs(newLocationList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			l, err := get(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			before := l.DeepCopy()
			// The value differs from the one before, whatever clocks say: what is waited for is another validation than the latest.
			patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, l.UID, location.AnnotationCheck, s.Now().UTC().Format(time.RFC3339Nano))
			if err := c.Patch(cmd.Context(), l, client.RawPatch(types.MergePatchType, patch)); err != nil {
				return fmt.Errorf("check location %s/%s: %w", l.Namespace, l.Name, err)
			}
			if err := w.Run(cmd.Context(), s, "location "+l.Name+" was tried", "location describe "+l.Name, untilValidated(s, c, before)); err != nil {
				return err
			}
			return output.PrintDone(cmd.OutOrStdout(), l, "available")
		},
	}
	w.AddFlagsAlways(c, checkTimeout)
	return c
}

// untilValidated waits until a location was tried again.
func untilValidated(s *resource.Session, c *cluster.Client, before *velerov1.BackupStorageLocation) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(before), &velerov1.BackupStorageLocation{}, newLocationList(),
			func(seen *velerov1.BackupStorageLocation, exists bool) (bool, error) {
				if !exists || seen.UID != before.UID {
					return false, failure.New("", "location %s was deleted", before.Name)
				}
				show(progress.Report{Name: seen.Name, Phase: "Checking", Message: seen.Status.Message})
				if seen.Status.LastValidationTime.Equal(before.Status.LastValidationTime) {
					return false, nil
				}
				if seen.Status.Phase != velerov1.LocationAvailable {
					return false, failure.New(s.CommandHint("location describe "+before.Name)+" shows its settings", "location %s: %s: %s", before.Name, seen.Status.Phase, seen.Status.Message)
				}
				return true, nil
			})
	}
}
