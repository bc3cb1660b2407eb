package spdk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/spdk/nvmetcp"
)

const servicePrefix = "nqn.2026-11.io.varvebackup:"

// Data is an open object. Nobody can delete the object before Close. It is safe for concurrent use.
type Data struct {
	*nvmetcp.Volume

	close func() error
}

// Close ends the use of the object. A second Close does nothing.
func (d *Data) Close() error { return d.close() }

// OpenData leases an object, and reads and writes its data until ctx ends. Only a head can be written. Two users
// of a head who write parts of the same block at the same time can undo each other's writes. Errors are those of Open.
func (d *Disk) OpenData(ctx context.Context, name disk.Name) (*Data, error) {
	data, err := d.openObject(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open the data of %q: %w", name, err)
	}
	return data, nil
}

func (d *Disk) openObject(ctx context.Context, name disk.Name) (*Data, error) {
	l, err := d.leaseIntact(ctx, name)
	if err != nil {
		return nil, err
	}
	data, err := d.openVolume(ctx, l.object.volume, l.object.Bytes)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	closeData := data.close
	data.close = func() error { return errors.Join(closeData(), l.Close()) }
	return data, nil
}

// openVolume has the target serve a volume, and connects to it. The caller keeps the volume from being deleted.
func (d *Disk) openVolume(ctx context.Context, name string, bytes int64) (*Data, error) {
	served, blockBytes, err := d.serve(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("have the target serve the volume %s: %w", name, err)
	}
	opened, err := nvmetcp.Connect(ctx, d.client.dial, nvmetcp.Target{
		Address: net.JoinHostPort(d.address, d.port), Subsystem: served.nqn, Host: d.hostName(), HostID: d.hostID,
		Namespace: served.namespace, BlockBytes: blockBytes, Bytes: bytes,
	})
	if err != nil {
		return nil, joinCleanup(err, d.endServe(ctx, name))
	}
	return &Data{Volume: opened, close: sync.OnceValue(func() error {
		return errors.Join(opened.Close(), d.endServe(ctx, name))
	})}, nil
}

// service is a volume that the target serves. It serves a volume only once, for all who have opened it.
type service struct {
	nqn       string
	namespace uint32
	users     int
}

// hostName returns the name that the target lets in. Nobody can guess it.
func (d *Disk) hostName() string {
	id := d.hostID
	return fmt.Sprintf("nqn.2014-08.org.nvmexpress:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// serve has the target serve a volume until endServe was called as often.
func (d *Disk) serve(ctx context.Context, name string) (served service, blockBytes int64, err error) {
	v, err := d.lockView(ctx)
	if err != nil {
		return service{}, 0, err
	}
	defer d.unlock()
	if there := d.served[name]; there != nil {
		there.users++
		return *there, v.store.BlockBytes, nil
	}
	if err := d.client.prepareService(ctx); err != nil { // the target may have been started again
		return service{}, 0, err
	}
	d.services++
	served = service{users: 1, nqn: fmt.Sprintf("%s%s:%x-%d", servicePrefix, v.store.UUID, d.hostID[:4], d.services)}
	served.namespace, err = d.client.serveVolume(ctx, served.nqn, d.hostName(), v.volumes[name].UUID, d.address, d.port)
	if err != nil {
		return service{}, 0, err
	}
	d.served[name] = &served
	return served, v.store.BlockBytes, nil
}

func (d *Disk) endServe(ctx context.Context, name string) error {
	d.lock <- struct{}{}
	defer d.unlock()
	served := d.served[name]
	if served.users--; served.users > 0 {
		return nil
	}
	delete(d.served, name)
	return d.client.endService(ctx, served.nqn)
}

// endOldServices removes what a process that ended had served. The caller has the lock.
func (d *Disk) endOldServices(ctx context.Context, s store) error {
	all, err := d.client.readServices(ctx)
	if err != nil {
		return err
	}
	for _, nqn := range all {
		if strings.HasPrefix(nqn, servicePrefix+s.UUID+":") {
			if err := d.client.endService(ctx, nqn); err != nil {
				return err
			}
		}
	}
	return nil
}

// lease is one use of an object.
type lease struct {
	disk   *Disk
	object object
	once   sync.Once
}

// Close ends the use. It has no error.
func (l *lease) Close() error {
	l.once.Do(func() {
		l.disk.lock <- struct{}{}
		defer l.disk.unlock()
		if l.disk.leases[l.object.UID]--; l.disk.leases[l.object.UID] == 0 {
			delete(l.disk.leases, l.object.UID)
		}
	})
	return nil
}

// leaseObject keeps an object for its new user. The caller has the lock.
func (d *Disk) leaseObject(o object) *lease {
	d.leases[o.UID]++
	return &lease{disk: d, object: o}
}

func (d *Disk) leaseIntact(ctx context.Context, name disk.Name) (*lease, error) {
	v, err := d.lockView(ctx)
	if err != nil {
		return nil, err
	}
	defer d.unlock()
	o, err := v.findIntact(name)
	if err != nil {
		return nil, err
	}
	if d.exclusive[o.UID] {
		return nil, errclass.Errorf(errclass.Transient, "its data is being taken for an image or a snapshot, which lasts "+
			"seconds: try again")
	}
	return d.leaseObject(o), nil
}

// Open implements [disk.Disk]. It returns ErrUnsupported for every object that is there and intact.
func (d *Disk) Open(ctx context.Context, name disk.Name) (disk.Lease, error) {
	l, err := d.leaseIntact(ctx, name)
	if err == nil {
		err = errors.Join(l.Close(), errclass.Errorf(ErrUnsupported, "the store %s is one of SPDK, which has no device for "+
			"it without drivers of the kernel: use a disk of another kind", d.store))
	}
	return nil, fmt.Errorf("open %q: %w", name, err)
}

// Users implements [disk.Disk].
func (d *Disk) Users(ctx context.Context, name disk.Name) (int, error) {
	v, err := d.lockView(ctx)
	if err != nil {
		return 0, fmt.Errorf("count the users of %q: %w", name, err)
	}
	defer d.unlock()
	o, err := v.findByName(name)
	if err != nil {
		return 0, fmt.Errorf("count the users of %q: %w", name, err)
	}
	return d.leases[o.UID], nil
}
