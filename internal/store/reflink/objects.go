package reflink

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// allObjects returns what the disk holds, in any order. The caller has the mutex, as for all methods of Disk here but
// Open and openLease.
func (d *Disk) allObjects() iter.Seq[located] {
	return func(yield func(located) bool) {
		for group, m := range d.groups {
			for _, e := range m.Objects {
				if !yield(located{entry: e, group: group}) {
					return
				}
			}
		}
	}
}

func (d *Disk) findByUID(uid disk.UID) (located, bool) {
	for o := range d.allObjects() {
		if o.UID == uid {
			return o, true
		}
	}
	return located{}, false
}

func (d *Disk) findByName(name disk.Name) (located, error) {
	for o := range d.allObjects() {
		if o.Name == name {
			return o, nil
		}
	}
	return located{}, errclass.Errorf(errclass.NotFound, "disk %s has no %q", d.dir, name)
}

// findIntact returns an object whose data can be used.
func (d *Disk) findIntact(name disk.Name) (located, error) {
	o, err := d.findByName(name)
	if err == nil && d.damaged[o.UID] {
		err = errclass.Errorf(errclass.Corrupt, "the data of %q (%s) is damaged: delete it, and make it again", name, o.UID)
	}
	return o, err
}

// findImage returns an image, damaged or not. An error is of class NotFound if the image does not have this UID.
func (d *Disk) findImage(ctx context.Context, name disk.Name, uid disk.UID) (located, error) {
	o, err := d.findByName(name)
	if err = errors.Join(d.checkOpen(ctx), err); err != nil {
		return located{}, err
	}
	if err := d.describe(o).CheckImage(uid); err != nil {
		return located{}, err
	}
	return o, nil
}

// volumeOf returns the volume whose replica a group is, or nothing.
func volumeOf(group string) disk.UID {
	if parent := filepath.Dir(group); filepath.Dir(parent) == volumesDir {
		return disk.UID(filepath.Base(parent))
	}
	return ""
}

func (d *Disk) describe(o located) disk.Object {
	state := disk.StateReady
	switch {
	case d.damaged[o.UID]:
		state = disk.StateDamaged
	case o.Kind == disk.KindHead:
		state = disk.StateWritable
	}
	return disk.Object{
		Name: o.Name, UID: o.UID, Volume: volumeOf(o.group), Parent: o.Parent, Kind: o.Kind, Bytes: o.Bytes, State: state,
		Checksum: o.Checksum,
	}
}

// dataPath returns the file that holds an object's data.
func (d *Disk) dataPath(o located) string {
	switch o.Kind {
	case disk.KindHead:
		return filepath.Join(d.dir, o.group, "head")
	case disk.KindSnapshot:
		return filepath.Join(d.dir, o.group, snapshotsDir, string(o.UID))
	default:
		return filepath.Join(d.dir, o.group, "data")
	}
}

// checkFree returns an error if a name or a UID is taken or being made.
func (d *Disk) checkFree(name disk.Name, uid disk.UID) error {
	for o := range d.allObjects() {
		if o.Name == name || o.UID == uid {
			return errclass.Errorf(errclass.Conflict, "the %s %q with the UID %s is there already", o.Kind, o.Name, o.UID)
		}
	}
	for pendingUID, pendingName := range d.pending {
		if pendingUID == uid || pendingName == name {
			return errclass.Errorf(errclass.Transient, "%q with the UID %s is being made: try again", pendingName, pendingUID)
		}
	}
	return nil
}

// lease is one use of an object.
type lease struct {
	disk   *Disk
	object located
	once   sync.Once
}

func (l *lease) Path() string { return l.disk.dataPath(l.object) }

func (l *lease) Close() error {
	l.once.Do(func() {
		l.disk.mu.Lock()
		defer l.disk.mu.Unlock()
		if l.disk.leases[l.object.UID]--; l.disk.leases[l.object.UID] == 0 {
			delete(l.disk.leases, l.object.UID)
		}
	})
	return nil
}

// leaseObject keeps an object for its new user.
func (d *Disk) leaseObject(o located) *lease {
	d.leases[o.UID]++
	return &lease{disk: d, object: o}
}

// Open implements [disk.Disk].
func (d *Disk) Open(ctx context.Context, name disk.Name) (disk.Lease, error) {
	l, err := d.openLease(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", name, err)
	}
	return l, nil
}

func (d *Disk) openLease(ctx context.Context, name disk.Name) (*lease, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen(ctx); err != nil {
		return nil, err
	}
	o, err := d.findIntact(name)
	if err != nil {
		return nil, err
	}
	if d.exclusive[o.UID] {
		return nil, errclass.Errorf(errclass.Transient, "its data is being taken for an image or a snapshot, which lasts "+
			"seconds: try again")
	}
	return d.leaseObject(o), nil
}

// Users implements [disk.Disk].
func (d *Disk) Users(ctx context.Context, name disk.Name) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.checkOpen(ctx)
	var o located
	if err == nil {
		o, err = d.findByName(name)
	}
	if err != nil {
		return 0, fmt.Errorf("count the users of %q: %w", name, err)
	}
	return d.leases[o.UID], nil
}
