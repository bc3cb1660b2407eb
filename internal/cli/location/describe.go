package location

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/location"
)

func newDescribeCommand(s *resource.Session) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe NAME", Short: "Show a location with its repositories",
		Long: `Show a location: where it is, whether it can be used and if not why, the repositories of namespaces
in it, and the events.`,
		Example: `  varve location describe default -n varve`,
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
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, l)
			}
			repositories, err := listRepositories(cmd.Context(), c, l)
			if err != nil {
				return err
			}
			events, err := resource.ReadEvents(cmd.Context(), c, l.Namespace, l.UID)
			if err != nil {
				return err
			}
			p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
			writeLocation(p, l, repositories)
			resource.WriteEvents(p, events)
			return p.Err
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

// listRepositories returns the repositories in a location, sorted by their namespaces.
func listRepositories(ctx context.Context, c *cluster.Client, l *velerov1.BackupStorageLocation) ([]velerov1.BackupRepository, error) {
	var list velerov1.BackupRepositoryList
	if err := c.List(ctx, &list, client.InNamespace(layout.Namespace)); err != nil {
		return nil, fmt.Errorf("list the repositories of location %s/%s: %w", l.Namespace, l.Name, err)
	}
	in := slices.DeleteFunc(list.Items, func(r velerov1.BackupRepository) bool {
		return r.Spec.BackupStorageLocation != l.Name || r.Spec.RepositoryConfig[datamove.ConfigLocationNamespace] != l.Namespace
	})
	slices.SortFunc(in, func(a, b velerov1.BackupRepository) int {
		return strings.Compare(a.Spec.VolumeNamespace, b.Spec.VolumeNamespace)
	})
	return in, nil
}

func writeLocation(p *output.Page, l *velerov1.BackupStorageLocation, repositories []velerov1.BackupRepository) {
	p.Fields(
		"Name", l.Name,
		"Namespace", l.Namespace,
		"Created", p.Moment(l.CreationTimestamp.Time),
		"Labels", output.FormatLabels(l.Labels),
		"Place", placeOf(l),
		"Provider", l.Spec.Provider,
		"Credential", credentialOf(l),
		"Access", accessOf(l),
		"Default", yes(l.Spec.Default),
		"Phase", phaseOf(l),
		"Message", l.Status.Message,
		"Validated", p.Timestamp(l.Status.LastValidationTime),
	)
	t := &output.Table{Header: []string{"NAMESPACE", "PHASE", "LAST MAINTENANCE", "MESSAGE"}}
	for i := range repositories {
		r := &repositories[i]
		t.Add(r.Spec.VolumeNamespace, string(r.Status.Phase), p.Timestamp(r.Status.LastMaintenanceTime), r.Status.Message)
	}
	p.Section("Repositories", t, "none yet")
}

func credentialOf(l *velerov1.BackupStorageLocation) string {
	if role := l.Annotations[location.AnnotationRole]; role != "" {
		return "role " + role
	}
	if l.Spec.Credential == nil {
		return ""
	}
	return "key " + l.Spec.Credential.Key + " of Secret " + l.Spec.Credential.Name
}
