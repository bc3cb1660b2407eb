package vm

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/machinebackup"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// restoreRequest is what the flags of `vm restore` say.
type restoreRequest struct {
	machine, from, location string
	keepMAC, halt           bool
	// replace puts the machine that exists back. stop and deleteOldDisks need it.
	replace, stop, deleteOldDisks bool
	// storageClasses are of the form OLD=NEW, and diskSizes of the form VOLUME=SIZE.
	storageClasses, diskSizes, exclude []string
	// replaceUID confirms which machine is replaced. It needs replace.
	replaceUID string
}

// check refuses flags that need another one.
func (r *restoreRequest) check() error {
	if !r.replace && (r.stop || r.deleteOldDisks || r.replaceUID != "") {
		return failure.Usage("--stop, --delete-old-disks and --replace-uid are about the machine that is " +
			"replaced: they need --replace")
	}
	for _, pair := range r.diskSizes {
		volume, size, both := strings.Cut(pair, "=")
		if _, err := apiresource.ParseQuantity(size); !both || volume == "" || err != nil {
			return failure.Usage("--disk-size %.80q is not of the form VOLUME=SIZE, such as data=20Gi", pair)
		}
	}
	return nil
}

func newRestoreCommand(s *resource.Session) *cobra.Command {
	var r restoreRequest
	var w resource.Waiting
	c := &cobra.Command{
		Use: "restore BACKUP", Short: "Bring a whole virtual machine back from a backup",
		Long: `Bring a whole virtual machine back from a backup: new claims with its disks, and the machine on
them, with the labels, the annotations and the run strategy that it had.

The name must be free, unless --replace puts the machine back that has it: this one must be
stopped, or --stop stops it when the disks are restored. Its old claims stay, unless
--delete-old-disks deletes them once it runs again. A machine other than the one that was
backed up is replaced only if --replace-uid has its UID, which the refusal names.

Without --name it is the name that the machine had. The next backup of the restored machine is
full, because its disks are new ones.`,
		Example: `  # The machine is gone
  varve vm backups
  varve vm restore web-20261129-020000 --keep-mac --wait

  # In another cluster, which has nothing but the location and the password
  varve vm backups --from-location default -n app
  varve vm restore web-20261129-020000 --from-location default -n app --keep-mac --wait

  # Beside the machine, and stopped
  varve vm restore web-20261129-020000 --name web-look --halt --wait

  # Back to an earlier state
  varve vm restore web-20261129-020000 --replace --stop --delete-old-disks --wait

  # On a cluster with other StorageClasses
  varve vm restore web-20261129-020000 --storage-class fast=premium --wait

  # With a larger disk
  varve vm restore web-20261129-020000 --disk-size data=20Gi --wait`,
		Args:              cmdline.ExactArgs(1, "the name of a machine backup"),
		ValidArgsFunction: s.CompleteArgs(machinebackup.NewList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.check(); err != nil {
				return err
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			if r.location != "" {
				if r.from != "" {
					return errTwoSources
				}
				if err := r.findStored(cmd.Context(), s, c, &w, args[0]); err != nil {
					return err
				}
			}
			o, err := r.newObject(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if err := c.Create(cmd.Context(), o); err != nil {
				return fmt.Errorf("create machine restore: %w", err)
			}
			if err := output.PrintDone(cmd.OutOrStdout(), o, "created"); err != nil || !w.Wait {
				return err
			}
			machine := o.Spec.Target.Name
			if err := w.RunEach(cmd.Context(), s, "virtual machine "+machine+" is restored", "vm describe "+machine,
				untilRestored(c, o)); err != nil {
				return err
			}
			how, err := describeRestored(cmd.Context(), c, machine)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "virtual machine %s %s\n", machine, how)
			return err
		},
	}
	c.Flags().StringVar(&r.machine, "name", "", "the restored machine's name (default: the one that it had)")
	c.Flags().StringVar(&r.from, "from-namespace", "", "the backup's namespace (default: that of the restored machine)")
	c.Flags().StringVar(&r.location, "from-location", "",
		"find the backup in this location of Varve's namespace, where this cluster or another one has stored it")
	c.Flags().BoolVar(&r.keepMAC, "keep-mac", false,
		"keep the hardware addresses; not beside the machine that has them")
	c.Flags().BoolVar(&r.halt, "halt", false, "leave the restored machine stopped")
	c.Flags().BoolVar(&r.replace, "replace", false,
		"put the machine that exists back; it keeps the hardware addresses of the backup")
	c.Flags().BoolVar(&r.stop, "stop", false, "with --replace: stop the machine when its disks are restored")
	c.Flags().BoolVar(&r.deleteOldDisks, "delete-old-disks", false,
		"with --replace: delete the machine's old claims once it runs again")
	c.Flags().StringSliceVar(&r.storageClasses, "storage-class", nil,
		"the StorageClass of new claims, as OLD=NEW; *=NEW is for every other one")
	c.Flags().StringSliceVar(&r.diskSizes, "disk-size", nil,
		"the size of a new claim that is to be larger than it was, as VOLUME=SIZE, such as data=20Gi")
	c.Flags().StringVar(&r.replaceUID, "replace-uid", "",
		"with --replace: the UID of the machine to replace, if it is not the one that was backed up")
	c.Flags().StringSliceVar(&r.exclude, "exclude-volume", nil, "volumes that the restored machine does not have")
	w.AddFlags(c, "the restored machine runs, or with --halt, is there", 0)
	return c
}

// describeRestored says what became of a restored machine: one that was stopped when it was backed up is stopped again.
func describeRestored(ctx context.Context, c *cluster.Client, machine string) (string, error) {
	vm := &kubevirtv1.VirtualMachine{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: machine}, vm); err != nil {
		return "", fmt.Errorf("get virtual machine %s: %w", machine, err)
	}
	if vm.Spec.Strategy() == kubevirtv1.RunStrategyHalted {
		return "is there, and stopped", nil
	}
	return "runs", nil
}

// newObject returns the restore to create. It reads the backup, for the machine's name, and to refuse one that cannot
// be restored.
func (r *restoreRequest) newObject(ctx context.Context, c *cluster.Client, backup string) (*harvesterv1.VirtualMachineRestore, error) {
	key := client.ObjectKey{Namespace: r.from, Name: backup}
	if key.Namespace == "" {
		key.Namespace = c.Namespace
	}
	b := &harvesterv1.VirtualMachineBackup{}
	if err := c.Get(ctx, key, b); err != nil {
		return nil, fmt.Errorf("get machine backup %s: %w", key, err)
	}
	if !b.IsReady() {
		return nil, failure.New("`varve vm backups -n "+key.Namespace+" -o wide` says why",
			"machine backup %s cannot be restored: it is %s", key, machinebackup.Phase(b))
	}
	machine := r.machine
	if machine == "" {
		machine = b.Spec.Source.Name
	}
	o := &harvesterv1.VirtualMachineRestore{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, GenerateName: "restore-" + backup + "-", Annotations: r.choiceAnnotations(),
		},
		Spec: harvesterv1.VirtualMachineRestoreSpec{
			Target: machinebackup.MachineReference(machine), VirtualMachineBackupName: backup,
			VirtualMachineBackupNamespace: key.Namespace,
			NewVM:                         !r.replace, KeepMacAddress: r.keepMAC, HaltAfterRestore: r.halt,
		},
	}
	if r.deleteOldDisks {
		o.Spec.DeletionPolicy = harvesterv1.DeletionPolicyDelete
	}
	return o, nil
}

// choiceAnnotations are those by which the restore gets what its spec has no fields for.
func (r *restoreRequest) choiceAnnotations() map[string]string {
	all := map[string]string{}
	if r.stop {
		all[harvesterv1.AnnotationStopTarget] = "true"
	}
	if len(r.storageClasses) > 0 {
		all[harvesterv1.AnnotationStorageClassMap] = strings.Join(r.storageClasses, ",")
	}
	if len(r.diskSizes) > 0 {
		all[harvesterv1.AnnotationDiskSizes] = strings.Join(r.diskSizes, ",")
	}
	if r.replaceUID != "" {
		all[harvesterv1.AnnotationReplaceUID] = r.replaceUID
	}
	if len(r.exclude) > 0 {
		all[harvesterv1.AnnotationExcludeVolumes] = strings.Join(r.exclude, ",")
	}
	return all
}

// untilRestored waits until a restore is complete. Each disk is shown by itself.
func untilRestored(c *cluster.Client, o *harvesterv1.VirtualMachineRestore) resource.WaitFunc {
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(o), &harvesterv1.VirtualMachineRestore{},
			&harvesterv1.VirtualMachineRestoreList{},
			func(seen *harvesterv1.VirtualMachineRestore, exists bool) (bool, error) {
				if !exists || seen.UID != o.UID {
					return false, failure.New("", "machine restore %s was deleted while it ran", o.Name)
				}
				message := machinebackup.Message(seen.Status.Conditions)
				if len(seen.Status.VolumeRestores) == 0 {
					show(progress.Report{Name: seen.Name, Phase: "Pending", Message: message})
				}
				for i := range seen.Status.VolumeRestores {
					v := &seen.Status.VolumeRestores[i]
					show(progress.Report{
						Name: v.VolumeName, Phase: "Restoring", Message: message, Percent: v.Progress,
						ProcessedBytes: v.VolumeSize / 100 * int64(v.Progress), TotalBytes: v.VolumeSize,
					})
				}
				if seen.HasFailed() {
					return false, failure.New("", "machine restore %s failed: %s", seen.Name, message)
				}
				return seen.IsComplete(), nil
			})
	}
}
