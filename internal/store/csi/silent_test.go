package csi

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskguard"
	"github.com/varvebackup/varve/internal/store/diskset"
)

// silentDisk does not answer.
type silentDisk struct{ disk.Disk }

func (silentDisk) List(context.Context) ([]disk.Object, error) { return nil, diskguard.ErrSilent }

// A disk that does not answer does not block the volumes of another disk, and no volume counts as deleted meanwhile.
func TestFindHead_looksAtTheOtherDisks(t *testing.T) {
	t.Parallel()
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: silentDisk{}, Name: "a", UUID: "disk-a"})
	disks.Put(diskset.Disk{Disk: &deletions{handle: "pvc-1"}, Name: "b", UUID: "disk-b"})
	d := New(Options{Disks: disks})
	on, head, err := d.findHead(t.Context(), "pvc-1", "")
	if err != nil || on.Name != "b" || head.Name != "volume/pvc-1" {
		t.Errorf("the volume of the other disk: %+v, %+v, %v", on, head, err)
	}
	for _, known := range []disk.UID{"", "disk-a"} {
		if _, _, err := d.findHead(t.Context(), "pvc-2", known); errclass.Of(err) != errclass.Transient ||
			errors.Is(err, errclass.NotFound) {
			t.Errorf("a volume that may be on disk %q: %v", known, err)
		}
	}
}

// snapshottable is a disk with a head, of which snapshots are made.
type snapshottable struct {
	deletions

	made []disk.Object
}

func (d *snapshottable) List(ctx context.Context) ([]disk.Object, error) {
	heads, err := d.deletions.List(ctx)
	return append(heads, d.made...), err
}

func (d *snapshottable) Snapshot(_ context.Context, _, name disk.Name, seal disk.Seal) error {
	d.made = append(d.made, disk.Object{
		Name: name, UID: seal.UID, Kind: seal.Kind, Volume: disk.UID(d.handle), State: disk.StateReady,
	})
	return nil
}

// besideSilent is a volume that no other test attaches: devices are those of the machine.
const besideSilent = "pvc-beside-silent"

// newBesideSilent returns a driver of node1 with a silent disk, and another one with the volume besideSilent.
func newBesideSilent(tb testing.TB) (*Driver, *snapshottable) {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := longhornv1.AddToScheme(scheme); err != nil {
		tb.Fatal(err)
	}
	replica := &longhornv1.Replica{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: besideSilent}}
	replica.Spec.NodeID, replica.Spec.DiskID = "node1", "disk-b"
	good := &snapshottable{deletions: deletions{handle: besideSilent}}
	disks := &diskset.Set{}
	disks.Put(diskset.Disk{Disk: silentDisk{}, Name: "a", UUID: "disk-a"})
	disks.Put(diskset.Disk{Disk: good, Name: "b", UUID: "disk-b"})
	return New(Options{
		Disks: disks, Node: "node1", Namespace: "varve", KubeletDir: tb.TempDir(), Clock: clock.RealClock{},
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(replica).Build(),
	}), good
}

// A disk that does not answer blocks neither snapshots of the volumes of another disk, nor the deletion of these
// snapshots and volumes.
func TestSilentDisk_holdsUpNoOtherDisk(t *testing.T) {
	t.Parallel()
	d, good := newBesideSilent(t)
	for range 2 { // the second call finds what the first one made
		if _, err := d.createSnapshot(t.Context(), besideSilent, "snapshot-1"); err != nil || len(good.made) != 1 {
			t.Fatalf("a snapshot of a volume of the other disk: %v, %d are made", err, len(good.made))
		}
	}
	if err := d.deleteVolume(t.Context(), besideSilent, ""); err != nil || good.n != 1 {
		t.Fatalf("the deletion of a volume of the other disk: %v, %d heads are deleted", err, good.n)
	}
	replica := &longhornv1.Replica{}
	if err := d.options.Client.Get(t.Context(), d.objectKey(besideSilent), replica); !apierrors.IsNotFound(err) {
		t.Errorf("its Replica is left: %v", err)
	}
	// The volume is gone, and the call is repeated whose answer was lost.
	made, err := d.createSnapshot(t.Context(), besideSilent, "snapshot-1")
	if err != nil || made.GetSnapshotId() != "disk-b/snapshot-1" {
		t.Errorf("the snapshot of a volume that is gone: %v, %v", made, err)
	}
	if _, err := d.createSnapshot(t.Context(), besideSilent, "snapshot-2"); !errors.Is(err, errclass.Transient) {
		t.Errorf("a snapshot that may be on the silent disk: %v", err)
	}
}
