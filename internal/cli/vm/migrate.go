package vm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/power"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// migrateTimeout is the default of --timeout: a queue, a large guest on a slow network.
const migrateTimeout = time.Hour

func newMigrateCommand(s *resource.Session) *cobra.Command {
	var w resource.Waiting
	var node string
	c := &cobra.Command{
		Use: "migrate NAME", Short: "Move a running virtual machine to another node",
		Long: `Move a running virtual machine to another node while its guest runs: create a
VirtualMachineInstanceMigration. All claims of the machine must be ReadWriteMany.

A migration waits for a running backup to end, and a backup that is created meanwhile waits
for the migration; --wait shows that. If a migration fails, the guest stays where it is. To
abort one, delete it: kubectl delete vmim.`,
		Example: `  varve vm migrate web --wait

  # To a certain node
  varve vm migrate web --to-node node-2 --wait`,
		Args: cmdline.ExactArgs(1, "the name of a virtual machine"), ValidArgsFunction: s.CompleteArgs(resource.NewVMs, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			m, err := createMigration(cmd.Context(), c, args[0], node)
			var notRunning *power.NotRunningError
			if errors.As(err, &notRunning) {
				return failure.New(s.CommandHint("vm start "+args[0])+" starts it", "%w", err)
			}
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "migration %s moves virtual machine %s\n", m.Name,
				args[0]); err != nil || !w.Wait {
				return err
			}
			return w.Run(cmd.Context(), s, "virtual machine "+args[0]+" is on another node", "vm describe "+args[0],
				untilMoved(c, m))
		},
	}
	c.Flags().StringVar(&node, "to-node", "", "the node to move to: its label kubernetes.io/hostname; default: any "+
		"other node")
	w.AddFlags(c, "the guest runs on the other node", migrateTimeout)
	return c
}

// createMigration creates a migration of a machine that runs and can be moved.
func createMigration(
	ctx context.Context, c *cluster.Client, name, node string,
) (*kubevirtv1.VirtualMachineInstanceMigration, error) {
	_, vmi, err := getVM(ctx, c, name)
	if err != nil {
		return nil, err
	}
	if vmi == nil || vmi.Status.Phase.Final() {
		return nil, &power.NotRunningError{VM: name}
	}
	if node != "" && node == vmi.Status.NodeName {
		return nil, failure.New("leave --to-node out to move it to any other node",
			"virtual machine %s already runs on node %s", name, node)
	}
	can := findCondition(vmi.Status.Conditions, kubevirtv1.ConditionLiveMigratable)
	if can != nil && can.Status == corev1.ConditionFalse {
		return nil, failure.New("", "virtual machine %s cannot be moved while it runs: %s", name, can.Message)
	}
	m := &kubevirtv1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, GenerateName: name + "-migration-"},
		Spec:       kubevirtv1.VirtualMachineInstanceMigrationSpec{VMIName: name},
	}
	if node != "" {
		m.Spec.AddedNodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	if err := c.Create(ctx, m); err != nil {
		return nil, fmt.Errorf("create a migration of virtual machine %s/%s: %w", c.Namespace, name, err)
	}
	return m, nil
}

// untilMoved waits until the migration has ended. It is an error if that failed.
func untilMoved(c *cluster.Client, created *kubevirtv1.VirtualMachineInstanceMigration) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(created), &kubevirtv1.VirtualMachineInstanceMigration{},
			&kubevirtv1.VirtualMachineInstanceMigrationList{},
			func(m *kubevirtv1.VirtualMachineInstanceMigration, exists bool) (bool, error) {
				if !exists || m.UID != created.UID {
					return false, failure.New("", "migration %s was deleted, which aborts it", created.Name)
				}
				show(newMigrationReport(m))
				if m.Status.Phase == kubevirtv1.MigrationFailed {
					return false, failure.New("the guest runs where it was", "migration %s failed: %s", m.Name,
						failureReason(m.Status.MigrationState))
				}
				return m.Status.Phase == kubevirtv1.MigrationSucceeded, nil
			})
	}
}

// newMigrationReport reports a migration, with what it waits for.
func newMigrationReport(m *kubevirtv1.VirtualMachineInstanceMigration) progress.Report {
	r := progress.Report{Name: m.Spec.VMIName, Phase: string(m.Status.Phase)}
	if m.Status.Phase == "" {
		r.Phase = string(kubevirtv1.MigrationPending)
	}
	if s := m.Status.MigrationState; s != nil && s.TargetNode != "" {
		r.Message = "from node " + s.SourceNode + " to node " + s.TargetNode
	}
	if m.Status.Phase.Final() {
		return r
	}
	for _, c := range m.Status.Conditions {
		if c.Status == corev1.ConditionTrue && c.Message != "" {
			r.Message = c.Message
		}
	}
	return r
}

func failureReason(s *kubevirtv1.MigrationState) string {
	if s == nil || s.FailureReason == "" {
		return "no reason was given; see its conditions and the events of its instance"
	}
	return s.FailureReason
}

// migratableSentence says whether the guest can be moved, or "" if nobody has said so.
func migratableSentence(vmi *kubevirtv1.VirtualMachineInstance) string {
	c := findCondition(vmi.Status.Conditions, kubevirtv1.ConditionLiveMigratable)
	switch {
	case c == nil:
		return ""
	case c.Status == corev1.ConditionTrue:
		return "yes"
	default:
		return "no: " + c.Message
	}
}

// migrationSentence says what became of the instance's last migration, or "" if there was none.
func migrationSentence(p *output.Page, s *kubevirtv1.MigrationState) string {
	if s == nil {
		return ""
	}
	way := "from node " + s.SourceNode + " to node " + s.TargetNode
	when := func(t *metav1.Time) string {
		if t == nil {
			return ""
		}
		return " " + p.Age(t.Time) + " ago"
	}
	switch {
	case s.Moved():
		return way + ", completed" + when(s.EndTimestamp)
	case s.Failed:
		return way + ", failed" + when(s.EndTimestamp) + ": " + failureReason(s)
	case s.AbortRequested:
		return way + ", is being aborted"
	default:
		return way + ", began" + when(s.StartTimestamp)
	}
}
