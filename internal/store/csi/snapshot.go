package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/names"
)

// flushPatience is how long writing what is cached for a volume may take: gigabytes.
const flushPatience = 4 * time.Minute

// errToken: a starting_token is not one that a list returned. The code is Aborted.
var errToken = errclass.New(errclass.Invalid, "token")

// CreateSnapshot makes a snapshot of a volume of this node, which may be attached: the snapshot then has what a crash
// of the machine would leave at that moment, and everything that was written before the call.
func (c *controllerServer) CreateSnapshot(
	ctx context.Context, r *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" || r.GetSourceVolumeId() == "" {
		return nil, errclass.Errorf(errclass.Invalid, "name or source_volume_id is empty: name the snapshot and its volume")
	}
	for key := range r.GetParameters() {
		if !strings.HasPrefix(key, reservedPrefix) {
			return nil, errclass.Errorf(errclass.Invalid,
				"create the snapshot %s: %s does not know the parameter %s of the VolumeSnapshotClass: leave it out",
				r.GetName(), names.Driver, key)
		}
	}
	made, err := c.createSnapshot(ctx, r.GetSourceVolumeId(), names.SnapshotUID(r.GetName()))
	if err != nil {
		return nil, fmt.Errorf("create the snapshot %s of the volume %s: %w", r.GetName(), r.GetSourceVolumeId(), err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: made}, nil
}

func (d *Driver) createSnapshot(ctx context.Context, handle string, uid disk.UID) (*csi.Snapshot, error) {
	if names.IsOfImage(handle) {
		return nil, errclass.Errorf(errclass.Invalid, "an image is made in it or read from it: clone the image")
	}
	end, err := d.begin(string(uid)) // no volume has this handle
	if err != nil {
		return nil, err
	}
	defer end()
	disks := d.options.Disks.All() // which may have the snapshot of a volume that is gone
	on, volumeErr := d.findVolumeDisk(ctx, handle)
	switch {
	case volumeErr == nil:
		disks = []diskset.Disk{on} // no other disk matters, even if it does not answer
	case !errors.Is(volumeErr, errclass.NotFound):
		return nil, volumeErr
	}
	having, there, err := d.findByUID(ctx, disks, uid)
	switch {
	case err == nil && there.Kind == disk.KindSnapshot && there.Volume == disk.UID(handle):
		return d.describeSnapshot(ctx, having, there), nil
	case err == nil:
		return nil, errclass.Errorf(errDiffers,
			"a snapshot with this name is there already, of the volume %s: use another name", there.Volume)
	case !errors.Is(err, errclass.NotFound):
		return nil, err
	case volumeErr != nil:
		return nil, volumeErr
	}
	name := names.Snapshot(handle, uid)
	if err := d.sealVolume(ctx, on, handle, name, uid); err != nil {
		return nil, err
	}
	made, err := findObject(ctx, on, name)
	if err != nil {
		return nil, err
	}
	return d.describeSnapshot(ctx, on, made), nil
}

// sealVolume makes a snapshot on the disk of what a volume has. No other call works on the volume meanwhile, so the
// snapshot never has half of a file system that is being made.
func (d *Driver) sealVolume(ctx context.Context, on diskset.Disk, handle string, name disk.Name, uid disk.UID) error {
	end, err := d.begin(handle)
	if err != nil {
		return err
	}
	device, err := d.findDevice(ctx, handle)
	if err == nil {
		flush := func() error { return flushVolume(device.Path) }
		err = flushWithin(ctx, d.options.Clock.NewTimer(flushPatience), flush, &end)
	}
	defer end()
	if err != nil && !errors.Is(err, errclass.NotFound) {
		return fmt.Errorf("write what is cached for it to the disk: %w", err)
	}
	return on.Snapshot(ctx, names.Head(handle), name, disk.Seal{UID: uid, Kind: disk.KindSnapshot})
}

// findVolumeDisk returns the disk of a volume of this node. An error is of class NotFound if there is no such volume,
// Exhausted if it is on another node, and Transient while its disk is not open.
func (d *Driver) findVolumeDisk(ctx context.Context, handle string) (diskset.Disk, error) {
	replica := &longhornv1.Replica{}
	err := errclass.Errorf(errclass.NotFound, "there is no volume %s", handle)
	if names.VolumeHandle(handle) != handle {
		return diskset.Disk{}, err
	}
	getErr := d.options.Client.Get(ctx, d.objectKey(handle), replica)
	switch {
	case apierrors.IsNotFound(getErr):
		return diskset.Disk{}, err
	case getErr != nil:
		return diskset.Disk{}, errclass.Errorf(errclass.Transient, "get Replica %s: %w", handle, getErr)
	case replica.Spec.NodeID != d.options.Node:
		return diskset.Disk{}, errOtherNode("volume "+handle, replica.Spec.NodeID)
	}
	on, _, err := d.findHead(ctx, handle, disk.UID(replica.Spec.DiskID))
	return on, err
}

// errElsewhere: what a volume is to be made of is on another node. The scheduler chooses again.
var errElsewhere = errclass.New(errclass.Exhausted, "elsewhere")

// errOtherNode says that something is on another node.
func errOtherNode(what, node string) error {
	return errclass.Errorf(errElsewhere, "the %s is on node %s: use it there, with a pod that runs on that node", what,
		node)
}

// findByUID returns an object of some of the open disks. It passes over a disk that cannot be read, and returns that
// disk's error if no other one has the object: an error is of class NotFound only if every disk was read.
func (d *Driver) findByUID(
	ctx context.Context, disks []diskset.Disk, uid disk.UID,
) (diskset.Disk, disk.Object, error) {
	var unread error
	for _, on := range disks {
		objects, err := on.List(ctx)
		if err != nil {
			unread = cmp.Or(unread, fmt.Errorf("list the objects of disk %s: %w", on.Name, err))
			continue
		}
		if i := slices.IndexFunc(objects, func(o disk.Object) bool { return o.UID == uid }); i >= 0 {
			return on, objects[i], nil
		}
	}
	if unread != nil {
		return diskset.Disk{}, disk.Object{}, unread
	}
	return diskset.Disk{}, disk.Object{}, errclass.Errorf(errclass.NotFound, "the open disks of node %s have no %s",
		d.options.Node, uid)
}

// findSnapshot returns a snapshot by its handle. An error is of class NotFound if the disk does not have it, and
// Transient if the disk is not open on this node.
func (d *Driver) findSnapshot(ctx context.Context, handle string) (diskset.Disk, disk.Object, error) {
	uuid, uid, ok := names.ParseSnapshotHandle(handle)
	if !ok {
		return diskset.Disk{}, disk.Object{}, errclass.Errorf(errclass.NotFound, "%q is not the handle of a snapshot", handle)
	}
	on, err := d.options.Disks.Find(uuid)
	if err != nil {
		return diskset.Disk{}, disk.Object{}, errclass.Errorf(errclass.Transient,
			"the snapshot %s: %v: look at status.diskStatus of the Nodes", handle, err)
	}
	objects, err := on.List(ctx)
	if err != nil {
		return diskset.Disk{}, disk.Object{}, fmt.Errorf("list the objects of disk %s: %w", on.Name, err)
	}
	for _, o := range objects {
		if o.UID == uid && o.Kind == disk.KindSnapshot {
			return on, o, nil
		}
	}
	return diskset.Disk{}, disk.Object{}, errclass.Errorf(errclass.NotFound, "disk %s does not have the snapshot %s",
		on.Name, handle)
}

// describeSnapshot says in CSI's words what a snapshot is. Its time is that of its file, which is immutable.
func (d *Driver) describeSnapshot(ctx context.Context, on diskset.Disk, o disk.Object) *csi.Snapshot {
	s := &csi.Snapshot{
		SnapshotId: names.SnapshotHandle(on.UUID, o.UID), SourceVolumeId: string(o.Volume), SizeBytes: o.Bytes,
		CreationTime: timestamppb.New(d.options.Clock.Now()), ReadyToUse: o.State == disk.StateReady,
	}
	lease, err := on.Open(ctx, o.Name)
	if err != nil { // it is damaged, or deleted meanwhile
		s.ReadyToUse = false
		return s
	}
	if info, err := os.Stat(lease.Path()); err == nil {
		s.CreationTime = timestamppb.New(info.ModTime())
	}
	d.closeLease(string(o.Name), lease)
	return s
}

// DeleteSnapshot deletes a snapshot of this node.
func (c *controllerServer) DeleteSnapshot(
	ctx context.Context, r *csi.DeleteSnapshotRequest,
) (*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, errclass.Errorf(errclass.Invalid, "snapshot_id is empty: name the snapshot")
	}
	if err := c.deleteSnapshot(ctx, r.GetSnapshotId()); err != nil {
		return nil, fmt.Errorf("delete the snapshot %s: %w", r.GetSnapshotId(), err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

func (d *Driver) deleteSnapshot(ctx context.Context, handle string) error {
	_, uid, ok := names.ParseSnapshotHandle(handle)
	if !ok {
		return nil // no snapshot has such a handle
	}
	end, err := d.begin(string(uid))
	if err != nil {
		return err
	}
	defer end()
	on, there, err := d.findSnapshot(ctx, handle)
	if err == nil {
		err = on.Delete(ctx, there.Name)
	}
	if errors.Is(err, errclass.NotFound) {
		return nil
	}
	return err
}

// ListSnapshots lists the snapshots on the node's open disks, in the order of their handles. A token is the number of
// snapshots before the page.
func (c *controllerServer) ListSnapshots(
	ctx context.Context, r *csi.ListSnapshotsRequest,
) (*csi.ListSnapshotsResponse, error) {
	var all []*csi.ListSnapshotsResponse_Entry
	for _, on := range c.options.Disks.All() {
		objects, err := on.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the snapshots of disk %s: %w", on.Name, err)
		}
		for _, o := range objects {
			_, _, ok := names.IsSnapshot(o.Name)
			wanted := ok && o.Kind == disk.KindSnapshot &&
				(r.GetSnapshotId() == "" || r.GetSnapshotId() == names.SnapshotHandle(on.UUID, o.UID)) &&
				(r.GetSourceVolumeId() == "" || r.GetSourceVolumeId() == string(o.Volume))
			if wanted {
				all = append(all, &csi.ListSnapshotsResponse_Entry{Snapshot: c.describeSnapshot(ctx, on, o)})
			}
		}
	}
	slices.SortFunc(all, func(a, b *csi.ListSnapshotsResponse_Entry) int {
		return cmp.Compare(a.GetSnapshot().GetSnapshotId(), b.GetSnapshot().GetSnapshotId())
	})
	first := 0
	if token := r.GetStartingToken(); token != "" {
		var err error
		if first, err = strconv.Atoi(token); err != nil || first < 0 || first > len(all) {
			return nil, errclass.Errorf(errToken,
				"list the snapshots: starting_token is %q: use the next_token of a list", token)
		}
	}
	resp := &csi.ListSnapshotsResponse{Entries: all[first:]}
	if most := int(r.GetMaxEntries()); most > 0 && most < len(resp.Entries) {
		resp.Entries = resp.Entries[:most]
		resp.NextToken = strconv.Itoa(first + most)
	}
	return resp, nil
}

// flushWithin returns what flush does, or an error of class Transient if flush takes too long, as on a disk that does
// not answer. Then flushWithin takes end over, and calls it when flush has returned.
func flushWithin(ctx context.Context, timer clock.Timer, flush func() error, end *func()) error {
	defer timer.Stop()
	flushed := make(chan error, 1)
	go func() { flushed <- flush() }()
	select {
	case err := <-flushed:
		return err
	case <-timer.C():
	case <-ctx.Done():
	}
	later := *end
	*end = func() {}
	go func() {
		<-flushed
		later()
	}()
	return errclass.Errorf(errclass.Transient, "that takes longer than it may, and goes on: the disk is busy, or does "+
		"not answer (look at status.diskStatus of the Node)")
}

// flushVolume writes what is cached for a device to its file: that of its file system, if one is mounted, and then what
// was written to the device itself. Nothing is frozen: what is written meanwhile may be in a snapshot or not, as after
// a crash, and nobody has to thaw anything.
func flushVolume(device string) error {
	there, err := findDeviceMount(device)
	if err != nil {
		return err
	}
	if there != "" {
		if err := syncFileSystem(there); err != nil {
			return err
		}
	}
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func syncFileSystem(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(f.Fd()))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write the file system at %s: %w", path, err)
	}
	return nil
}
