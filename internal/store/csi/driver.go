package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
	"github.com/varvebackup/varve/internal/store/loop"
	"github.com/varvebackup/varve/internal/store/names"
)

// Errors with a gRPC code that their class alone does not give.
var (
	// errBusy: another call works on the volume. The code is Aborted.
	errBusy = errclass.New(errclass.Transient, "busy")
	// errDiffers: a volume with the name is there, and is another one. The code is AlreadyExists.
	errDiffers = errclass.New(errclass.Conflict, "differs")
	// errSize: the size cannot be. The code is OutOfRange.
	errSize = errclass.New(errclass.Invalid, "size")
	// errImageLarger: the image has more bytes than the volume. The code is that of errSize.
	errImageLarger = errclass.New(errSize, "image larger")
)

// detachTimeout is how long a call waits until the kernel has detached a device. Kubelet repeats the call.
const detachTimeout = 10 * time.Second

// Driver is the CSI driver of a node, with its provisioner. The services share what it knows.
type Driver struct {
	options Options
	log     *slog.Logger
	loops   loop.Devices
	changed workqueue.TypedRateLimitingInterface[string] // handles of volumes whose status is to be written
	busy    sync.Map                                     // handles of volumes that a call works on

	mu       sync.Mutex
	attached map[string]disk.Lease // by handle: the heads that have a device
	pending  map[string]pending    // by handle: volumes that were asked for
	contents cache.Store           // the VolumeSnapshotContents, or nil as long as they are not known
	// wakeClaim has the claim with a UID provisioned soon. It is nil before there is a provisioner.
	wakeClaim func(types.UID)
	unready   error // why kubelet does not call the driver, or nil if it does
}

// New returns a driver.
func New(o Options) *Driver {
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	return &Driver{
		options: o, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), loops: loop.Devices{Dir: "/dev", Clock: o.Clock},
		changed:  newQueue[string](statusRetryFirst, statusRetryMost),
		attached: map[string]disk.Lease{}, pending: map[string]pending{},
		unready: errclass.Errorf(errclass.Transient, "kubelet has not yet registered the CSI driver %s", names.Driver),
	}
}

// Ready returns nil if kubelet has registered the driver, so that pods can have their volumes.
func (d *Driver) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unready
}

// noteRegistration notes what kubelet says of the driver.
func (d *Driver) noteRegistration(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unready = err
}

// LeaseAttached leases the heads of a disk that have a device, which an earlier process attached. Call it before the
// disk is in Options.Disks, and before anything on it is deleted or sealed. If it fails, the disk cannot be used.
func (d *Driver) LeaseAttached(ctx context.Context, opened diskset.Disk) error {
	objects, err := opened.List(ctx)
	if err != nil {
		return fmt.Errorf("lease the attached volumes of disk %s: %w", opened.Name, err)
	}
	for _, o := range objects {
		handle, ok := names.IsHead(o.Name)
		if !ok || o.Kind != disk.KindHead || o.State != disk.StateWritable {
			continue
		}
		if err := d.leaseAttachedHead(ctx, opened, handle); err != nil {
			return fmt.Errorf("lease the volume %s of disk %s if it is attached: %w", handle, opened.Name, err)
		}
		d.changed.Add(handle)
	}
	return nil
}

func (d *Driver) leaseAttachedHead(ctx context.Context, opened diskset.Disk, handle string) error {
	lease, err := opened.Open(ctx, names.Head(handle))
	if err != nil {
		return err
	}
	_, err = d.loops.Find(lease.Path())
	if err == nil {
		d.keepLease(handle, lease)
		return nil
	}
	if errors.Is(err, errclass.NotFound) {
		err = nil
	}
	return errors.Join(err, lease.Close())
}

// keepLease notes that a volume has a device, and ends the lease of an earlier call.
func (d *Driver) keepLease(handle string, lease disk.Lease) {
	d.mu.Lock()
	earlier, ok := d.attached[handle]
	d.attached[handle] = lease
	d.mu.Unlock()
	if ok {
		d.closeLease(handle, earlier)
	}
}

// dropLease notes that a volume has no device.
func (d *Driver) dropLease(handle string) {
	d.mu.Lock()
	lease, ok := d.attached[handle]
	delete(d.attached, handle)
	d.mu.Unlock()
	if ok {
		d.closeLease(handle, lease)
	}
}

func (d *Driver) closeLease(handle string, lease disk.Lease) {
	if err := lease.Close(); err != nil {
		d.log.Error("end the lease of a volume", "volume", handle, "error", err)
	}
}

// CountAttached returns how many volumes have a device, without those in which images are made.
func (d *Driver) CountAttached() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for handle := range d.attached {
		if !names.IsSource(handle) {
			n++
		}
	}
	return n
}

// isAttached says whether a volume has a device, as far as this process knows.
func (d *Driver) isAttached(handle string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.attached[handle]
	return ok
}

// findDevice returns the device of a volume: by the file of its head, or else by its name, which outlives the disk. An
// error is of class NotFound if there is none.
func (d *Driver) findDevice(ctx context.Context, handle string) (loop.Device, error) {
	d.mu.Lock()
	lease, ok := d.attached[handle]
	d.mu.Unlock()
	if ok {
		return d.findFileDevice(lease.Path(), handle)
	}
	lease, err := d.openHead(ctx, handle)
	if err != nil {
		return d.loops.FindName(handle)
	}
	device, err := d.findFileDevice(lease.Path(), handle)
	return device, errors.Join(err, lease.Close())
}

// openHead leases the head of a volume.
func (d *Driver) openHead(ctx context.Context, handle string) (disk.Lease, error) {
	on, _, err := d.findHead(ctx, handle, "")
	if err != nil {
		return nil, err
	}
	return on.Open(ctx, names.Head(handle))
}

// findFileDevice returns the device of a file, or else that with the name of the volume: the file is out of reach if
// its disk is dead.
func (d *Driver) findFileDevice(path, handle string) (loop.Device, error) {
	device, err := d.loops.Find(path)
	if err != nil && !errors.Is(err, errclass.NotFound) {
		return d.loops.FindName(handle)
	}
	return device, err
}

// begin returns an error if another call works on a volume. Otherwise the caller calls end.
func (d *Driver) begin(handle string) (end func(), err error) {
	if _, busy := d.busy.LoadOrStore(handle, true); busy {
		return nil, errclass.Errorf(errBusy, "another call works on the volume %s: try again", handle)
	}
	return func() { d.busy.Delete(handle) }, nil
}

// findHead returns the head of a volume, and its disk: the one that is named, or any. An error is of class NotFound if
// the open disks lack the head, and Transient if the disk is not open. findHead passes over a disk that cannot be read,
// and returns that disk's error only if no other one has the head.
func (d *Driver) findHead(ctx context.Context, handle string, on disk.UID) (diskset.Disk, disk.Object, error) {
	disks := d.options.Disks.All()
	if on != "" {
		named, err := d.options.Disks.Find(on)
		if err != nil {
			return diskset.Disk{}, disk.Object{}, errclass.Errorf(errclass.Transient, "%v: look at status.diskStatus of Node %s",
				err, d.options.Node)
		}
		disks = []diskset.Disk{named}
	}
	var unread error
	for _, candidate := range disks {
		o, err := findObject(ctx, candidate, names.Head(handle))
		if err == nil {
			return candidate, o, nil
		}
		if unread == nil && !errors.Is(err, errclass.NotFound) {
			unread = err
		}
	}
	if unread != nil {
		return diskset.Disk{}, disk.Object{}, unread
	}
	return diskset.Disk{}, disk.Object{}, errclass.Errorf(errclass.NotFound,
		"the open disks of node %s do not have the volume %s",
		d.options.Node, handle)
}

// findObject returns an object of a disk. An error is of class NotFound if the disk does not have it.
func findObject(ctx context.Context, on diskset.Disk, name disk.Name) (disk.Object, error) {
	objects, err := on.List(ctx)
	if err != nil {
		return disk.Object{}, fmt.Errorf("list the objects of disk %s: %w", on.Name, err)
	}
	for _, o := range objects {
		if o.Name == name {
			return o, nil
		}
	}
	return disk.Object{}, errclass.Errorf(errclass.NotFound, "disk %s has no %q", on.Name, name)
}

// convertErrors gives the errors of calls their gRPC codes, and logs them.
func (d *Driver) convertErrors(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	resp, err := next(ctx, req)
	if err == nil {
		return resp, nil
	}
	d.log.Error("call failed", "method", info.FullMethod, "error", err)
	if d.options.Failed != nil {
		d.options.Failed()
	}
	if _, ok := status.FromError(err); ok {
		return nil, err
	}
	return nil, status.Error(grpcCode(err), err.Error())
}

// grpcCode returns the code that the CSI specification wants for an error.
func grpcCode(err error) codes.Code {
	switch {
	case errors.Is(err, errBusy), errors.Is(err, errToken):
		return codes.Aborted
	case errors.Is(err, errDiffers):
		return codes.AlreadyExists
	case errors.Is(err, errSize):
		return codes.OutOfRange
	}
	return errclass.GRPCCode(err)
}
