package vm

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/backup"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/power"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/cli/tracker"
	"github.com/varvebackup/varve/internal/tracking"
)

// lastBackups is how many backups a machine's description shows.
const lastBackups = 5

func newDescribeCommand(s *resource.Session) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use: "describe NAME", Short: "Show a virtual machine with its disks, trackers and last backups",
		Long: `Show a virtual machine: its state, its instance, its disks and whether they can be backed
up incrementally, its trackers, its last backups and recent events.`,
		Example: `  varve vm describe web

  # The API object
  varve vm describe web -o yaml`,
		Args: cmdline.ExactArgs(1, "the name of a virtual machine"), ValidArgsFunction: s.CompleteArgs(resource.NewVMs, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			vm, vmi, err := getVM(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if form != "" {
				return output.PrintObject(cmd.OutOrStdout(), form, vm)
			}
			p := &output.Page{Out: cmd.OutOrStdout(), Now: s.Now()}
			if err := writeVM(cmd.Context(), p, c, vm, vmi); err != nil {
				return err
			}
			return p.Err
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	return c
}

func writeVM(ctx context.Context, p *output.Page, c *cluster.Client, vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance) error {
	inNamespace := client.InNamespace(vm.Namespace)
	var trackers backupv1.VirtualMachineBackupTrackerList
	if err := c.List(ctx, &trackers, inNamespace); err != nil {
		return fmt.Errorf("list trackers: %w", err)
	}
	var backups backupv1.VirtualMachineBackupList
	if err := c.List(ctx, &backups, inNamespace); err != nil {
		return fmt.Errorf("list backups: %w", err)
	}
	kubevirt, err := c.RunsKubeVirt(ctx)
	if err != nil {
		return err
	}
	uids := []types.UID{vm.UID}
	if vmi != nil {
		uids = append(uids, vmi.UID)
	}
	events, err := resource.ReadEvents(ctx, c, vm.Namespace, uids...)
	if err != nil {
		return err
	}
	writeState(p, vm, vmi, kubevirt)
	writeDisks(p, vm, vmi)
	writeConditions(p, vm)
	mine := slices.DeleteFunc(trackers.Items, func(t backupv1.VirtualMachineBackupTracker) bool { return t.Spec.Source.Name != vm.Name })
	noTracker, noBackup := "none; `varve tracker create NAME --vm "+vm.Name+"` makes one", "none"
	if kubevirt {
		noTracker, noBackup = "none; the first backup makes one", "none runs; `varve vm backups` lists those that are stored"
	}
	p.Section("Trackers", tracker.NewTable(mine, p.Now, false), noTracker)
	p.Section("Last backups", backup.NewTable(selectLastBackups(vm.Name, mine, backups.Items), p.Now, false), noBackup)
	resource.WriteEvents(p, events)
	return nil
}

func writeState(p *output.Page, vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance, kubevirt bool) {
	pairs := []string{
		"Name", vm.Name,
		"Namespace", vm.Namespace,
		"Runtime", runtimeSentence(kubevirt),
		"Created", p.Moment(vm.CreationTimestamp.Time),
		"Labels", output.FormatLabels(vm.Labels),
		"Run strategy", string(power.Strategy(vm)),
		"Status", string(vm.Status.PrintableStatus),
		"Failure", failureSentence(p, vm),
		"Ready", yesNo(vm.Status.Ready),
		"Restart required", restartSentence(vm),
		"Requested", formatRequests(vm.Status.StateChangeRequests),
		"Changed block tracking", trackingSentence(vm.Status.ChangedBlockTracking),
		"Backups", describeUntracked(vmi, kubevirt),
	}
	if vmi != nil {
		pairs = append(pairs,
			"Instance", string(vmi.Status.Phase)+" for "+p.Age(phaseSince(vmi)),
			"Node", vmi.Status.NodeName,
			"Address", firstAddress(vmi),
			"Guest", vmi.Status.GuestOSInfo.PrettyName,
			"Running backup", runningBackup(vmi.Status.ChangedBlockTracking),
			"File systems", vmi.Status.FSFreezeStatus,
			"Live migratable", migratableSentence(vmi),
			"Last migration", migrationSentence(p, vmi.Status.MigrationState),
		)
	}
	p.Fields(pairs...)
}

func writeDisks(p *output.Page, vm *kubevirtv1.VirtualMachine, vmi *kubevirtv1.VirtualMachineInstance) {
	t := &output.Table{Header: []string{"DISK", "CLAIM", "SIZE", "DEVICE", "INCREMENTAL"}}
	if vm.Spec.Template == nil {
		return
	}
	eligible := tracking.EligibleVolumes(&vm.Spec.Template.Spec)
	for _, v := range vm.Spec.Template.Spec.Volumes {
		var status kubevirtv1.VolumeStatus
		if vmi != nil {
			if i := slices.IndexFunc(vmi.Status.VolumeStatus, func(s kubevirtv1.VolumeStatus) bool { return s.Name == v.Name }); i >= 0 {
				status = vmi.Status.VolumeStatus[i]
			}
		}
		claim, size := "", ""
		if v.PersistentVolumeClaim != nil {
			claim = v.PersistentVolumeClaim.ClaimName
		}
		if status.Size > 0 {
			size = human.Bytes(status.Size)
		}
		can := "possible"
		if !slices.Contains(eligible, v.Name) {
			can = "no: read-only or shared"
		}
		t.Add(v.Name, claim, size, status.Target, can)
	}
	p.Section("Disks", t, "none")
}

func writeConditions(p *output.Page, vm *kubevirtv1.VirtualMachine) {
	t := &output.Table{Header: []string{"CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, c := range vm.Status.Conditions {
		t.Add(string(c.Type), string(c.Status), c.Reason, c.Message)
	}
	p.Section("Conditions", t, "")
}

// selectLastBackups returns the last backups of a machine, newest first: by status, or by spec while status does not
// name it yet.
func selectLastBackups(vm string, trackers []backupv1.VirtualMachineBackupTracker, all []backupv1.VirtualMachineBackup) []backupv1.VirtualMachineBackup {
	all = slices.DeleteFunc(all, func(b backupv1.VirtualMachineBackup) bool {
		tracked := slices.ContainsFunc(trackers, func(t backupv1.VirtualMachineBackupTracker) bool { return t.Name == b.Spec.TrackerName() })
		return b.Status.SourceName != vm && b.Spec.MachineName() != vm && !tracked
	})
	slices.SortStableFunc(all, func(a, b backupv1.VirtualMachineBackup) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	return all[:min(len(all), lastBackups)]
}

// runtimeSentence says what runs the machine, and what that means for its backups.
func runtimeSentence(kubevirt bool) string {
	if kubevirt {
		return "KubeVirt (the first backup after a restart reads the disks as a whole: see docs/kubevirt.md)"
	}
	return "Varve"
}

// restartSentence says what only a restart applies, or "".
func restartSentence(vm *kubevirtv1.VirtualMachine) string {
	c := findCondition(vm.Status.Conditions, kubevirtv1.ConditionRestartRequired)
	if c == nil || c.Status != corev1.ConditionTrue {
		return ""
	}
	return c.Message + " (`varve vm restart " + vm.Name + "`)"
}

// failureSentence says why the machine has no running instance, and when the next start is, or "".
func failureSentence(p *output.Page, vm *kubevirtv1.VirtualMachine) string {
	c := findCondition(vm.Status.Conditions, kubevirtv1.ConditionFailure)
	if c == nil || c.Status != corev1.ConditionTrue {
		return ""
	}
	sentence := c.Reason + ": " + c.Message
	f := vm.Status.StartFailure
	if f != nil && f.RetryAfterTimestamp != nil && f.RetryAfterTimestamp.After(p.Now) {
		sentence += " (failures in a row: " + strconv.Itoa(f.ConsecutiveFailCount) + "; the next start is in " + human.Span(f.RetryAfterTimestamp.Sub(p.Now)) + ")"
	}
	return sentence
}

func formatRequests(all []kubevirtv1.StateChangeRequest) string {
	var actions []string
	for _, r := range all {
		actions = append(actions, string(r.Action))
	}
	return strings.Join(actions, ", then ")
}

// describeUntracked says how a machine that runs under KubeVirt, and whose changes are not tracked, is backed up, or
// "".
func describeUntracked(vmi *kubevirtv1.VirtualMachineInstance, kubevirt bool) string {
	if !kubevirt || vmi == nil || vmi.Status.Phase != kubevirtv1.PhaseRunning {
		return ""
	}
	s := vmi.Status.ChangedBlockTracking
	if s != nil && (s.State == kubevirtv1.ChangedBlockTrackingEnabled ||
		s.State == kubevirtv1.ChangedBlockTrackingInitializing) {
		return ""
	}
	return "each reads the disks as a whole from a snapshot (NotTracked), until the changes of the machine are tracked"
}

func trackingSentence(cbt *kubevirtv1.ChangedBlockTrackingStatus) string {
	if cbt == nil {
		return "not selected (label the machine or its namespace as the KubeVirt object's changedBlockTrackingLabelSelectors say)"
	}
	if cbt.State == kubevirtv1.ChangedBlockTrackingPendingRestart {
		return "PendingRestart (`varve vm restart` applies it)"
	}
	return string(cbt.State)
}
