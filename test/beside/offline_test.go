//go:build beside

package beside

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// backUpStopped backs the machine up while it is stopped, deletes it and restores it. Its disks are read from KubeVirt's
// export, as a whole.
func (s *scene) backUpStopped() {
	s.t.Helper()
	b := s.backUp("stopped")
	for _, v := range b.Status.VolumeBackups {
		if v.FullReason != datamove.FullMachineStopped || v.SnapshotID == "" {
			s.t.Errorf("disk %s of the stopped machine: %+v", v.VolumeName, v)
		}
	}
	ctx := s.t.Context()
	s.mustSucceed(s.DeleteMachine(ctx, machine, 2*time.Minute))
	s.mustSucceed(s.RestoreLostMachine(ctx, b, backupTimeout))
}

// takeSnapshot takes KubeVirt's snapshot of the running machine, changes a disk, deletes the machine with its disks, and
// restores it from the snapshot, which goes with its backup.
func (s *scene) takeSnapshot() {
	ctx := s.t.Context()
	sizes := s.measureDisks()
	sums := s.hashFirstBytes(sizes)
	b := s.createSnapshot("snapshot")
	s.waitEnded(b)
	if !b.IsReady() {
		s.t.Fatalf("snapshot failed: %s", *b.Status.Error.Message)
	}
	s.checkFrozen(b)
	s.runInGuest(`dd if=/dev/urandom of=$root bs=1M seek=31 count=2 conv=fsync`)
	vmi := s.getInstance()
	s.mustSucceed(s.DeleteMachine(ctx, machine, 2*time.Minute))
	s.mustSucceed(s.WaitGone(ctx, vmi, time.Minute))
	s.mustSucceed(s.RestoreLostMachine(ctx, b, backupTimeout))
	s.waitBooted()
	if diff := cmp.Diff(sums, s.hashFirstBytes(sizes)); diff != "" {
		verdict.Errorf(s.t, "the disks differ from those of the snapshot (-want +got):\n%s", diff)
	}
	s.mustSucceed(s.Delete(ctx, b))
	s.waitSnapshotsGone()
}

// waitSnapshotsGone waits until KubeVirt's snapshots of the machine are gone, and those of the storage with them.
func (s *scene) waitSnapshotsGone() {
	s.t.Helper()
	const what = "KubeVirt's snapshots to go with the backup"
	s.mustSucceed(wait.For(s.t.Context(), 2*time.Minute, what, func(ctx context.Context) (bool, string, error) {
		left, err := s.listObjects(ctx, "snapshot.kubevirt.io/v1beta1", "VirtualMachineSnapshot", client.InNamespace(s.Namespace))
		if err != nil {
			return false, "", err
		}
		volumes, err := s.listObjects(ctx, "snapshot.storage.k8s.io/v1", "VolumeSnapshot", client.InNamespace(s.Namespace))
		return len(left)+len(volumes) == 0, fmt.Sprintf("%d and %d", len(left), len(volumes)), err
	}))
}

// endTracking removes the labels by which KubeVirt tracks the machine, from its next start on.
func (s *scene) endTracking() {
	s.t.Helper()
	vm := &kubevirtv1.VirtualMachine{}
	vm.Namespace, vm.Name = s.Namespace, machine
	const patch = `{"metadata":{"labels":{"varvebackup.io/test-tracking":null}},
		"spec":{"template":{"metadata":{"labels":{"varvebackup.io/test-tracking":null}}}}}`
	s.mustSucceed(s.Patch(s.t.Context(), vm, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// backUpUntracked backs the running machine up, whose changes nobody tracks: as a whole, from KubeVirt's snapshot,
// while the guest writes. The machine is lost and restored as it was at that moment.
func (s *scene) backUpUntracked() {
	s.t.Helper()
	s.nameSnapshotClass()
	if out := s.runVarve("vm", "describe", machine); !strings.Contains(out, "as a whole from a snapshot (NotTracked)") {
		s.t.Errorf("varve vm describe does not say how the machine is backed up:\n%s", out)
	}
	s.runInGuest(`dd if=/dev/urandom of=$root bs=1M seek=40 count=9 conv=fsync
		dd if=/dev/urandom of=$data bs=1M seek=40 count=9 conv=fsync`)
	sizes := s.measureDisks()
	sums := s.hashFirstBytes(sizes)
	b := s.createBackup("untracked")
	taken := "KubeVirt's snapshot to be ready"
	s.mustSucceed(wait.For(s.t.Context(), backupTimeout, taken, func(ctx context.Context) (bool, string, error) {
		err := s.Get(ctx, client.ObjectKeyFromObject(b), b)
		return b.Status.Untracked != nil && b.Status.Untracked.SnapshotUID != "" || b.HasFailed(),
			fmt.Sprintf("%+v", b.Status.Conditions), err
	}))
	s.runInGuest(`dd if=/dev/urandom of=$data bs=1M seek=40 count=9 conv=fsync`)
	s.waitEnded(b)
	if !b.IsReady() {
		s.t.Fatalf("backup of the untracked machine failed: %s", *b.Status.Error.Message)
	}
	if b.Status.Untracked == nil || !strings.Contains(b.Status.Untracked.Message, "to have incremental backups") {
		s.t.Errorf("status %+v", b.Status.Untracked)
	}
	s.checkFrozen(b)
	for _, v := range b.Status.VolumeBackups {
		if v.FullReason != datamove.FullNotTracked || v.SnapshotID == "" {
			s.t.Errorf("disk %s of the untracked machine: %+v", v.VolumeName, v)
		}
	}
	s.waitSnapshotsGone()
	ctx, vmi := s.t.Context(), s.getInstance()
	s.mustSucceed(s.DeleteMachine(ctx, machine, 2*time.Minute))
	s.mustSucceed(s.WaitGone(ctx, vmi, time.Minute))
	s.mustSucceed(s.RestoreLostMachine(ctx, b, backupTimeout))
	s.waitBooted()
	if diff := cmp.Diff(sums, s.hashFirstBytes(sizes)); diff != "" {
		verdict.Errorf(s.t, "the restored disks differ from those of the snapshot (-want +got):\n%s", diff)
	}
}

// checkFrozen checks that a snapshot says that the guest was frozen.
func (s *scene) checkFrozen(b *harvesterv1.VirtualMachineBackup) {
	s.t.Helper()
	agent := func(i harvesterv1.SourceIndication) bool { return i.Indication == "GuestAgent" }
	if !slices.ContainsFunc(b.Status.SourceIndications, agent) {
		s.t.Errorf("the guest was not frozen: %+v", b.Status.SourceIndications)
	}
}

// createSnapshot creates a backup of type snapshot of the machine.
func (s *scene) createSnapshot(name string) *harvesterv1.VirtualMachineBackup {
	s.t.Helper()
	s.nameSnapshotClass()
	b := lab.NewMachineBackup(s.Namespace, name, machine)
	b.Spec.Type = harvesterv1.Snapshot
	s.mustSucceed(s.Create(s.t.Context(), b))
	return b
}

// nameSnapshotClass says which of several classes KubeVirt is to take for its snapshots.
func (s *scene) nameSnapshotClass() {
	s.t.Helper()
	ctx := s.t.Context()
	classes, err := s.listObjects(ctx, "snapshot.storage.k8s.io/v1", "VolumeSnapshotClass")
	s.mustSucceed(err)
	for i := range classes {
		if classes[i].GetName() == "box" {
			patch := []byte(`{"metadata":{"annotations":{"snapshot.storage.kubernetes.io/is-default-class":"true"}}}`)
			s.mustSucceed(s.Patch(ctx, &classes[i], client.RawPatch(types.MergePatchType, patch)))
		}
	}
}
