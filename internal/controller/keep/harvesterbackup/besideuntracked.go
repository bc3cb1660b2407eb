package harvesterbackup

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
)

// KubeVirt makes no pull backup of a machine whose changes it does not track. Such a machine is backed up from a
// VirtualMachineSnapshot, which has all disks of one moment and freezes the guest if its agent answers, and from a
// VirtualMachineExport of that, which serves the disks as those of stopped machines. The data mover's own way to
// VolumeSnapshots would take them away from KubeVirt's object, which owns them and then says that it is broken.

// isTracked says whether the disks come from a machine that runs and whose changes are tracked.
func isTracked(b *harvesterv1.VirtualMachineBackup) bool {
	return b.Status.Stopped == nil && b.Status.Untracked == nil
}

// describeUntracked says why the changes of a machine that runs under KubeVirt are not tracked. It returns nil if they
// are, or are about to be, or if Varve runs the machine.
func (in *input) describeUntracked() *harvesterv1.UntrackedMachine {
	if !in.beside || isSnapshot(in.backup) || in.instance == nil {
		return nil
	}
	const (
		settings = "spec.configuration.changedBlockTrackingLabelSelectors of the KubeVirt object"
		label    = "give it a label that " + settings + " selects by, and restart it"
	)
	state := stateOf(in.instance.Status.ChangedBlockTracking)
	if state == kubevirtv1.ChangedBlockTrackingEnabled || state == kubevirtv1.ChangedBlockTrackingInitializing {
		return nil
	}
	// KubeVirt says of the machine, and not of its instance, that the next start changes something.
	if s := machineState(in.machine); s != "" {
		state = s
	}
	why, how := string(state), label
	switch state {
	case kubevirtv1.ChangedBlockTrackingDisabled:
	case "":
		why = "it is not selected, or KubeVirt is older than 1.8"
	case kubevirtv1.ChangedBlockTrackingPendingRestart, kubevirtv1.ChangedBlockTrackingEnabled,
		kubevirtv1.ChangedBlockTrackingInitializing:
		how = "restart it"
	case kubevirtv1.ChangedBlockTrackingFGDisabled:
		how = "turn KubeVirt's feature gate IncrementalBackup on, and restart it"
	}
	return &harvesterv1.UntrackedMachine{
		Message: fmt.Sprintf("the changes of virtual machine %s are not tracked (%s), and its disks are read as a whole: "+
			"to have incremental backups, %s", in.backup.Spec.Source.Name, why, how),
	}
}

func stateOf(s *kubevirtv1.ChangedBlockTrackingStatus) kubevirtv1.ChangedBlockTrackingState {
	if s == nil {
		return ""
	}
	return s.State
}

// machineState returns the state of changed block tracking of a machine, or "".
func machineState(vm *unstructured.Unstructured) kubevirtv1.ChangedBlockTrackingState {
	state, _, _ := unstructured.NestedString(vm.Object, "status", "changedBlockTracking", "state")
	return kubevirtv1.ChangedBlockTrackingState(state)
}

// checkUntracked says what is in the way of a backup of such a machine, or nil.
func (in *input) checkUntracked() *plan {
	if in.earlier == "" {
		return in.refuseSnapshot()
	}
	p := in.waitForEarlier()
	return &p
}

// readyUntracked makes the snapshot that the disks are read from, and notes it when it is ready. It never makes another
// one after that: the disks would be of two moments.
func (r *reconciler) readyUntracked(
	ctx context.Context, b *harvesterv1.VirtualMachineBackup,
) (waiting, refused string, err error) {
	if b.Status.Untracked.SnapshotUID != "" {
		refused, err = r.findOtherSnapshot(ctx, b)
		return "", refused, err
	}
	s, err := r.findSnapshot(ctx, b)
	switch {
	case meta.IsNoMatchError(err):
		return "", "the cluster does not have the kind VirtualMachineSnapshot of snapshot.kubevirt.io. " +
			withoutSnapshot(b), nil
	case err != nil:
		return "", "", err
	case s == nil:
		if s, refused, err = r.createSnapshot(ctx, b); refused != "" || err != nil {
			return "", refused, err
		}
	}
	if failed := describeSnapshotFailure(b, s, r.Clock.Now()); failed != "" {
		return "", failed + ". " + withoutSnapshot(b), nil
	}
	if !s.IsReady() {
		return describeSnapshotProgress(s), "", nil
	}
	return r.noteUntracked(ctx, b, s)
}

// noteUntracked writes into the status which snapshot the disks are read from, and how consistent it is.
func (r *reconciler) noteUntracked(
	ctx context.Context, b *harvesterv1.VirtualMachineBackup, s *vmsnapshotv1.VirtualMachineSnapshot,
) (waiting, refused string, err error) {
	content, err := r.findContent(ctx, b, s)
	if err != nil {
		return "", "", err
	}
	taken := b.DeepCopy() // what a backup of type snapshot says of its disks is not true of this one's
	if content != nil {
		observeContent(&taken.Status, content)
	}
	failed := describeTaken(taken, s, content)
	if failed == "" {
		if failed, err = r.checkVolumeSnapshots(ctx, taken); err != nil {
			return "", "", err
		}
	}
	if failed != "" {
		return "", failed + ". " + withoutSnapshot(b), nil
	}
	base := b.DeepCopy()
	b.Status.SourceIndications, b.Status.Untracked.SnapshotUID = taken.Status.SourceIndications, s.UID
	return "", "", r.writeStatus(ctx, base, b)
}

// withoutSnapshot says which ways are left to a machine of which KubeVirt makes no snapshot.
func withoutSnapshot(b *harvesterv1.VirtualMachineBackup) string {
	return fmt.Sprintf("Without a snapshot, virtual machine %s can be backed up when its changes are tracked, or while "+
		"it is stopped: %s", b.Spec.Source.Name, b.Status.Untracked.Message)
}

// findOtherSnapshot says that the snapshot that the disks are read from is gone, or another one, or "".
func (r *reconciler) findOtherSnapshot(ctx context.Context, b *harvesterv1.VirtualMachineBackup) (string, error) {
	s, err := r.findSnapshot(ctx, b)
	switch {
	case err != nil && !meta.IsNoMatchError(err):
		return "", err
	case s == nil || s.DeletionTimestamp != nil || s.UID != b.Status.Untracked.SnapshotUID:
		return fmt.Sprintf("VirtualMachineSnapshot %s was deleted before its disks were stored: create another backup",
			b.Status.Group), nil
	}
	return "", nil
}
