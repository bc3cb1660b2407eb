// Package spdk keeps a disk's images and volumes as logical volumes of a store of an SPDK target, which it asks by
// JSON-RPC over the target's unix socket. Their attributes say what they are; nothing is kept beside the store.
//
//	varve-h-<UID>   a head
//	varve-s-<UID>   a snapshot
//	varve-i-<UID>   an image: a clone of varve-b-<UID> that was frozen
//	varve-b-<UID>   what a head had when an image was made of it, whose clones the head and the image are
//	varve-x-<UID>   beside an image, or a snapshot with a checksum: the checksum, the hashes of the pieces, and whether
//	                the data is damaged, because attributes of frozen volumes never change
//	varve-g-<UID>   beside a snapshot that is deleted, and that the target cannot delete yet
//
// An object exists if and only if its volume has the attribute varve, and its varve-x volume has, too, if it needs one.
// That attribute is set last, and goes first. So a crash of this process or of the target leaves the old state or the
// new one, and volumes that belong to no object, which Open and the next Delete remove. Volumes of other names are
// somebody else's, and stay as they are. No other process may use the store's volumes of these names: the target has no
// lock for that.
//
// What the target cannot do without a driver of the kernel is not offered: Open returns [ErrUnsupported], because a
// lease needs the path of a file or a device. OpenData reads and writes the same data by NVMe over TCP. Repair returns
// [ErrUnsupported], too: delete a damaged image, and copy it again. Place tells which parts of an object have data, but
// not where they are.
//
// What the contract calls durable survives the death of this process and of the target. Whether it survives a loss of
// power depends on the device below: a flush of a logical volume waits for its writes, and flushes no device.
//
// The size that a user of the target's devices sees is a multiple of a cluster. Object.Bytes is what OpenData ends at.
//
// The calls are those of Longhorn's fork of SPDK 24.09. Upstream lacks bdev_lvol_get_xattr, bdev_lvol_set_xattr,
// bdev_lvol_get_fragmap and attributes of bdev_lvol_snapshot. A target that does not know a call answers
// [ErrUnsupported].
//
// A Disk is safe for concurrent use. Calls that change something wait for each other, except where data is read or
// copied.
package spdk

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// Options say where a disk is.
type Options struct {
	// Socket is the path of the target's unix socket for JSON-RPC.
	Socket string
	// Store is the name of a store of logical volumes, whose clusters have 1 MiB or a multiple of that.
	Store string
	// DataAddress is where the target serves data while it is read or written: an IPv4 address and a port that nobody else
	// uses, such as 127.0.0.1:4421. Everybody who reaches it needs a name that is chosen at random for this process.
	DataAddress string
}

// Disk is a store of logical volumes. It implements [disk.Disk].
type Disk struct {
	client        client
	store         string
	uuid          string // of the store, as it was at Open
	recovered     []string
	address, port string // of data
	hostID        [16]byte

	lock       chan struct{} // has an element while somebody has the lock
	services   int           // how many there were, so that each has a name of its own
	served     map[string]*service
	attributes map[string]string
	pending    map[disk.UID]disk.Name
	sealing    map[disk.UID]bool
	exclusive  map[disk.UID]bool
	leases     map[disk.UID]int
}

var _ disk.Disk = (*Disk)(nil)

// Open opens a disk, and removes what a crash has left. The error has class Invalid if the store cannot be a disk, and
// Transient if the target does not have it now.
func Open(ctx context.Context, o Options) (*Disk, error) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	return openDisk(ctx, o, new(net.Dialer).DialContext, id)
}

func openDisk(ctx context.Context, o Options, dial dialer, hostID [16]byte) (*Disk, error) {
	address, port, err := net.SplitHostPort(o.DataAddress)
	if ip := net.ParseIP(address); err != nil || ip == nil || ip.To4() == nil {
		return nil, errclass.Errorf(errclass.Invalid, "the data address %q is not an IPv4 address and a port: use one "+
			"such as 127.0.0.1:4421", o.DataAddress)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, errclass.Errorf(errclass.Invalid, "the port of the data address %q is not 1 to 65535", o.DataAddress)
	}
	d := &Disk{
		client: client{dial: dial, address: o.Socket}, store: o.Store, address: address, port: port, hostID: hostID,
		lock: make(chan struct{}, 1), served: map[string]*service{}, attributes: map[string]string{},
		pending: map[disk.UID]disk.Name{}, sealing: map[disk.UID]bool{}, exclusive: map[disk.UID]bool{},
		leases: map[disk.UID]int{},
	}
	if err := d.recoverState(ctx); err != nil {
		return nil, fmt.Errorf("open store %s: %w", o.Store, err)
	}
	return d, nil
}

// UUID returns the store's UUID.
func (d *Disk) UUID() disk.UID { return disk.UID(d.uuid) }

// Recovered says what Open found beside the objects, and left alone: volumes whose attribute cannot be read, and
// volumes that belong to no object, and that the target did not delete.
func (d *Disk) Recovered() []string { return slices.Clone(d.recovered) }

// recoverState removes what a process that ended had served, and volumes of objects that it had not finished.
func (d *Disk) recoverState(ctx context.Context) error {
	v, err := d.lockView(ctx)
	if err != nil {
		return err
	}
	defer d.unlock()
	if err := d.endOldServices(ctx, v.store); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(v.unreadable)) {
		d.recovered = append(d.recovered, v.unreadable[name].Error())
	}
	if err := d.collect(ctx, v); err != nil {
		// The objects are there all the same. A deletion or the next Open tries that again.
		d.recovered = append(d.recovered, err.Error())
	}
	return ctx.Err()
}

// lockView takes the lock, and reads what the store has. The caller has the lock only if there is no error.
func (d *Disk) lockView(ctx context.Context) (*view, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case d.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	v, err := d.readView(ctx)
	if err != nil {
		d.unlock()
		return nil, err
	}
	return v, nil
}

func (d *Disk) unlock() { <-d.lock }

// List implements [disk.Disk].
func (d *Disk) List(ctx context.Context) ([]disk.Object, error) {
	v, err := d.lockView(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the objects of store %s: %w", d.store, err)
	}
	defer d.unlock()
	var all []disk.Object
	for _, o := range v.objects {
		all = append(all, v.describe(o))
	}
	slices.SortFunc(all, func(a, b disk.Object) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Usage implements [disk.Disk].
func (d *Disk) Usage(ctx context.Context) (disk.Usage, error) {
	v, err := d.lockView(ctx)
	if err != nil {
		return disk.Usage{}, fmt.Errorf("read the usage of store %s: %w", d.store, err)
	}
	defer d.unlock()
	u := disk.Usage{
		Capacity:  v.store.TotalClusters * v.store.ClusterBytes,
		Available: v.store.FreeClusters * v.store.ClusterBytes,
	}
	for _, o := range v.objects {
		if o.Kind == disk.KindHead {
			u.Provisioned += o.Bytes
		}
	}
	return u, nil
}

// Grow implements [disk.Disk].
func (d *Disk) Grow(ctx context.Context, head disk.Name, bytes int64) error {
	if err := d.growHead(ctx, head, bytes); err != nil {
		return fmt.Errorf("grow %q: %w", head, err)
	}
	return nil
}

func (d *Disk) growHead(ctx context.Context, head disk.Name, bytes int64) error {
	v, err := d.lockView(ctx)
	if err != nil {
		return err
	}
	defer d.unlock()
	o, err := v.findByName(head)
	switch {
	case err != nil:
		return err
	case o.Kind != disk.KindHead:
		return errclass.Errorf(errclass.Invalid, "it is no head, but a %s", o.Kind)
	case bytes < o.Bytes:
		return errclass.Errorf(errclass.Invalid, "it has %d bytes, more than %d: it cannot shrink", o.Bytes, bytes)
	case bytes == o.Bytes:
		return nil
	case d.sealing[o.UID]:
		return errclass.Errorf(errclass.Transient, "a snapshot of it is being made: try again")
	}
	if err := d.client.resizeVolume(ctx, v.store, o.volume, bytes); err != nil {
		return err
	}
	o.Bytes = bytes
	return d.writeEntry(ctx, v, o.volume, o.entry) // without it the volume is only larger than it has to be
}

// joinCleanup adds the error of an attempt to undo something, if it failed.
func joinCleanup(err, cleanup error) error {
	if cleanup == nil {
		return err
	}
	return errors.Join(err, fmt.Errorf("undo it: %w", cleanup))
}
