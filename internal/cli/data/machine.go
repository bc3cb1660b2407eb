package data

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/tracking"
)

// validateMachineFlags checks the form with --vm. args are the command's arguments.
func (r *uploadRequest) validateMachineFlags(args []string) error {
	switch {
	case len(args) == 0:
		return failure.Usage("--vm needs a NAME: the uploads of the machine's disks are called NAME-VOLUME")
	case r.scratchClaim == "":
		return failure.Usage("--vm needs --scratch-claim: the claim for what the guest overwrites while its disks are read")
	}
	if why := validation.IsDNS1123Label(args[0]); len(why) > 0 {
		return failure.Usage("name %s: %s", args[0], why[0])
	}
	return nil
}

// newMachineUploads returns the uploads to create for the disks of a running machine, in the order of its volumes. It reads what they
// depend on, to refuse what could never be stored.
func (r *uploadRequest) newMachineUploads(ctx context.Context, c *cluster.Client, group string) ([]*velerov2.DataUpload, error) {
	instance, err := r.findRunning(ctx, c)
	if err != nil {
		return nil, err
	}
	volumes, err := r.selectVolumes(instance)
	if err != nil {
		return nil, err
	}
	for _, check := range []func() error{
		func() error { return r.checkTracker(ctx, c) },
		func() error { return r.checkScratchClaim(ctx, c) },
		func() error { return r.checkGroupIsNew(ctx, c, group) },
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	labels := map[string]string{}
	maps.Copy(labels, r.labels)
	labels[datamove.LabelGroup] = group
	var all []*velerov2.DataUpload
	for _, v := range volumes {
		disk := datamove.MachineDisk{
			Machine: r.machine, Volume: v.Name, Tracker: r.tracker, ScratchClaim: r.scratchClaim, Group: group, Disks: len(volumes),
		}
		all = append(all, &velerov2.DataUpload{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: group + "-" + v.Name, Labels: maps.Clone(labels)},
			Spec: velerov2.DataUploadSpec{
				SnapshotType: velerov2.SnapshotMachineBackup, DataMoverConfig: disk.Config(),
				SourceNamespace: r.namespace, SourcePVC: v.PersistentVolumeClaim.ClaimName, DataMover: datamove.Mover, BackupStorageLocation: r.location,
				OperationTimeout: velerov1.Duration{Duration: r.timeout},
			},
		})
	}
	return all, nil
}

// findRunning returns the instance of the machine, whose changes are tracked.
func (r *uploadRequest) findRunning(ctx context.Context, c *cluster.Client) (*kubevirtv1.VirtualMachineInstance, error) {
	key := client.ObjectKey{Namespace: r.namespace, Name: r.machine}
	if err := c.Get(ctx, key, &kubevirtv1.VirtualMachine{}); err != nil {
		return nil, fmt.Errorf("get virtual machine %s: %w", key, err)
	}
	instance := &kubevirtv1.VirtualMachineInstance{}
	err := c.Get(ctx, key, instance)
	if err != nil && cluster.Classify(err) != cluster.NotFound {
		return nil, fmt.Errorf("get instance %s: %w", key, err)
	}
	var state kubevirtv1.ChangedBlockTrackingState
	if s := instance.Status.ChangedBlockTracking; s != nil {
		state = s.State
	}
	switch {
	case err != nil || instance.DeletionTimestamp != nil || instance.Status.Phase != kubevirtv1.PhaseRunning:
		hint := fmt.Sprintf("start it with `varve vm start %s -n %s`, or store snapshots of its claims (--snapshot)", r.machine, r.namespace)
		return nil, failure.New(hint, "virtual machine %s does not run", key)
	case state != kubevirtv1.ChangedBlockTrackingEnabled && state != kubevirtv1.ChangedBlockTrackingInitializing:
		hint := fmt.Sprintf("`varve vm describe %s -n %s` says how to have them tracked", r.machine, r.namespace)
		return nil, failure.New(hint, "the changes of virtual machine %s are not tracked: %s", key, cmp.Or(string(state), "it is not selected"))
	}
	return instance, nil
}

// selectVolumes returns the volumes to store: those of --volume, or all whose changes are tracked.
func (r *uploadRequest) selectVolumes(instance *kubevirtv1.VirtualMachineInstance) ([]kubevirtv1.Volume, error) {
	eligible := tracking.EligibleVolumes(&instance.Spec)
	if len(eligible) == 0 {
		return nil, failure.New("store snapshots of its claims (--snapshot)", "virtual machine %s/%s has no disk whose changes can be tracked", r.namespace, r.machine)
	}
	for _, name := range r.volumes {
		if !slices.Contains(eligible, name) {
			return nil, failure.New("its disks whose changes are tracked: "+strings.Join(eligible, ", "), "--volume %s: virtual machine %s/%s has no such disk", name, r.namespace, r.machine)
		}
	}
	var selected []kubevirtv1.Volume
	for _, v := range instance.Spec.Volumes {
		if slices.Contains(eligible, v.Name) && (len(r.volumes) == 0 || slices.Contains(r.volumes, v.Name)) {
			selected = append(selected, v)
		}
	}
	if len(selected) > datamove.MaxGroupDisks {
		return nil, failure.New("select some with --volume", "%s of %s/%s at once: at most %d", human.Count(len(selected), "disk"), r.namespace, r.machine, datamove.MaxGroupDisks)
	}
	return selected, nil
}

// checkTracker refuses a tracker of another machine.
func (r *uploadRequest) checkTracker(ctx context.Context, c *cluster.Client) error {
	if r.tracker == "" {
		return nil
	}
	t := &backupv1.VirtualMachineBackupTracker{}
	key := client.ObjectKey{Namespace: r.namespace, Name: r.tracker}
	if err := c.Get(ctx, key, t); err != nil {
		return fmt.Errorf("get tracker %s: %w", key, err)
	}
	if of := t.Spec.Source.Name; of != r.machine {
		return failure.New(fmt.Sprintf("`varve tracker create NAME --vm %s -n %s` makes one", r.machine, r.namespace), "tracker %s is of virtual machine %s, not of %s", key, of, r.machine)
	}
	return nil
}

// checkScratchClaim refuses a claim that cannot take in what the guest overwrites.
func (r *uploadRequest) checkScratchClaim(ctx context.Context, c *cluster.Client) error {
	claim := &corev1.PersistentVolumeClaim{}
	key := client.ObjectKey{Namespace: r.namespace, Name: r.scratchClaim}
	if err := c.Get(ctx, key, claim); err != nil {
		return fmt.Errorf("get scratch claim %s: %w", key, err)
	}
	if tracking.IsBlock(claim.Spec.VolumeMode) {
		return failure.New("name a claim whose volumeMode is Filesystem", "scratch claim %s has volumeMode Block", key)
	}
	return nil
}

// checkGroupIsNew refuses a name that a backup of the machine's namespace has, or a group of uploads: the group's backup is made once.
func (r *uploadRequest) checkGroupIsNew(ctx context.Context, c *cluster.Client, group string) error {
	const useAnother = "choose another name"
	key := client.ObjectKey{Namespace: r.namespace, Name: group}
	switch err := c.Get(ctx, key, &backupv1.VirtualMachineBackup{}); {
	case err == nil:
		return failure.New(useAnother, "backup %s exists: the uploads are read from a backup of their own, which gets their name", key)
	case cluster.Classify(err) != cluster.NotFound:
		return fmt.Errorf("get backup %s: %w", key, err)
	}
	list := &velerov2.DataUploadList{}
	if err := c.List(ctx, list, client.InNamespace(c.Namespace)); err != nil {
		return fmt.Errorf("list uploads in namespace %s: %w", c.Namespace, err)
	}
	for i := range list.Items {
		if disk := machineDiskOf(&list.Items[i]); disk != nil && disk.Group == group {
			return failure.New(useAnother, "upload %s/%s is of a group %s already", c.Namespace, list.Items[i].Name, group)
		}
	}
	return nil
}

// machineDiskOf returns which disk of a running machine an upload moves, or nil.
func machineDiskOf(u *velerov2.DataUpload) *datamove.MachineDisk {
	if u.Spec.SnapshotType != velerov2.SnapshotMachineBackup || u.Spec.DataMoverConfig[datamove.ConfigSource] != "" {
		return nil
	}
	disk, err := datamove.ParseMachineDisk(u.Spec.DataMoverConfig)
	if err != nil {
		return nil // its message says so
	}
	return &disk
}
