//go:build beside

package beside

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
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
	agent := func(i harvesterv1.SourceIndication) bool { return i.Indication == "GuestAgent" }
	if !slices.ContainsFunc(b.Status.SourceIndications, agent) {
		s.t.Errorf("the guest was not frozen: %+v", b.Status.SourceIndications)
	}
	s.runInGuest(`dd if=/dev/urandom of=$root bs=1M seek=31 count=2 conv=fsync`)
	vmi := s.getInstance()
	s.mustSucceed(s.DeleteMachine(ctx, machine, 2*time.Minute))
	s.mustSucceed(s.WaitGone(ctx, vmi, time.Minute))
	s.mustSucceed(s.RestoreLostMachine(ctx, b, backupTimeout))
	s.waitTracked()
	if diff := cmp.Diff(sums, s.hashFirstBytes(sizes)); diff != "" {
		verdict.Errorf(s.t, "the disks differ from those of the snapshot (-want +got):\n%s", diff)
	}
	s.mustSucceed(s.Delete(ctx, b))
	const what = "KubeVirt's snapshots to go with the backup"
	s.mustSucceed(wait.For(ctx, 2*time.Minute, what, func(ctx context.Context) (bool, string, error) {
		left, err := s.listObjects(ctx, "snapshot.kubevirt.io/v1beta1", "VirtualMachineSnapshot", client.InNamespace(s.Namespace))
		if err != nil {
			return false, "", err
		}
		volumes, err := s.listObjects(ctx, "snapshot.storage.k8s.io/v1", "VolumeSnapshot", client.InNamespace(s.Namespace))
		return len(left)+len(volumes) == 0, fmt.Sprintf("%d and %d", len(left), len(volumes)), err
	}))
}

// createSnapshot creates a backup of type snapshot of the machine. KubeVirt wants to know which of several classes it is
// to take.
func (s *scene) createSnapshot(name string) *harvesterv1.VirtualMachineBackup {
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
	b := lab.NewMachineBackup(s.Namespace, name, machine)
	b.Spec.Type = harvesterv1.Snapshot
	s.mustSucceed(s.Create(ctx, b))
	return b
}
