package schedule

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/resource"
)

func newDeleteCommand(s *resource.Session) *cobra.Command {
	return s.DeleteCommand(resource.Deletion{
		Noun: "schedule", Argument: "the name of a schedule",
		Short: "Delete schedules, but not their backups",
		Long: `Delete schedules. Their backups stay, until 'varve vm delete-backup' deletes them: no other
schedule removes them. A backup that runs goes on.`,
		Example: `  varve schedule delete nightly`,
		Object:  func() client.Object { return &harvesterv1.ScheduleVMBackup{} }, NewList: newList,
		State: func(client.Object) (string, string) { return string(Deleting), "it is being deleted" },
		Kept:  describeKept,
	})
}

// describeKept says which backups of a schedule outlive it.
func describeKept(ctx context.Context, c *cluster.Client, o client.Object) (string, error) {
	backups, err := listBackups(ctx, c, o.(*harvesterv1.ScheduleVMBackup))
	switch {
	case err != nil:
		return "", err
	case len(backups) == 0:
		return "schedule " + o.GetName() + " had no backups", nil
	}
	verb := "stay"
	if len(backups) == 1 {
		verb = "stays"
	}
	return fmt.Sprintf("%s of schedule %s %s", human.Count(len(backups), "backup"), o.GetName(), verb), nil
}
