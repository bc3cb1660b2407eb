package spdk

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

const (
	// formatVersion is the version of the attributes.
	formatVersion = 1
	// attribute is the name of the attribute that makes a volume an object.
	attribute = "varve"
	prefix    = "varve-"
)

// role is what a volume is for, the letter in its name.
type role byte

const (
	roleHead     role = 'h'
	roleSnapshot role = 's'
	roleImage    role = 'i'
	roleBase     role = 'b'
	roleSeal     role = 'x'
	roleGone     role = 'g'
)

func volumeName(r role, uid disk.UID) string { return prefix + string(r) + "-" + string(uid) }

// parseVolumeName returns what a volume is for. It is somebody else's if it is not ok.
func parseVolumeName(name string) (r role, uid disk.UID, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || len(rest) < 3 || rest[1] != '-' || !strings.ContainsRune("hsibxg", rune(rest[0])) {
		return 0, "", false
	}
	uid = disk.UID(rest[2:])
	return role(rest[0]), uid, uid.Validate() == nil
}

var roles = map[disk.Kind]role{disk.KindHead: roleHead, disk.KindSnapshot: roleSnapshot, disk.KindImage: roleImage}

// entry is the attribute of a head, a snapshot or an image.
type entry struct {
	Format int       `json:"format"`
	Name   disk.Name `json:"name"`
	UID    disk.UID  `json:"uid"`
	Kind   disk.Kind `json:"kind"`
	Volume disk.UID  `json:"volume,omitempty"`
	Origin disk.UID  `json:"origin,omitempty"` // a head's first parent, or the head that was sealed
	Bytes  int64     `json:"bytes"`
	// Independent is set if a head has no parent, although it has an origin.
	Independent bool `json:"independent,omitempty"`
	// Sealed is set if the object exists only together with its seal.
	Sealed bool `json:"sealed,omitempty"`
}

// validate returns an error if a volume of a role and a UID cannot have this attribute.
func (e entry) validate(r role, uid disk.UID) error {
	if e.UID != uid || roles[e.Kind] != r || e.Bytes <= 0 {
		return errclass.Errorf(errclass.Invalid, "its attribute is of the %s %s with %d bytes", e.Kind, e.UID, e.Bytes)
	}
	return e.Name.Validate()
}

// seal is the attribute of a varve-x volume.
type seal struct {
	Format   int    `json:"format"`
	Checksum string `json:"checksum"`
	Damaged  string `json:"damaged,omitempty"` // why, if the data was found to be other than it was
}

// object is an object of the disk.
type object struct {
	entry

	seal   seal // empty unless Sealed is set
	volume string
}

// replica returns the UID of the head that the object belongs to, or nothing for an image.
func (o object) replica() disk.UID {
	switch o.Kind {
	case disk.KindHead:
		return o.UID
	case disk.KindSnapshot:
		return o.Origin
	default:
		return ""
	}
}

// view is what a store has at a moment.
type view struct {
	store   store
	volumes map[string]volume
	objects map[disk.UID]object
	// unreadable are volumes whose attribute a newer version wrote, or nobody. They are left alone.
	unreadable map[string]error
}

// readView reads what the store has. It remembers the attributes, which never change but by this process. The caller
// has the lock.
func (d *Disk) readView(ctx context.Context) (*view, error) {
	// A target that was just started finds its volumes one after the other. A list from before the end would lack some.
	if err := d.client.call(ctx, "bdev_wait_for_examine", nil, nil); err != nil {
		return nil, err
	}
	s, err := d.client.readStore(ctx, d.store)
	if err != nil {
		return nil, err
	}
	if d.uuid == "" {
		d.uuid = s.UUID
	}
	if s.UUID != d.uuid { // what another store lacks is not deleted
		return nil, errclass.Errorf(errclass.Transient, "the store %s has the UUID %s, and had %s when it was opened", d.store,
			s.UUID, d.uuid)
	}
	v := &view{store: s, objects: map[disk.UID]object{}, unreadable: map[string]error{}}
	if v.volumes, err = d.client.readVolumes(ctx, s); err != nil {
		return nil, err
	}
	// The store may have gone meanwhile, and some of its volumes with it.
	again, err := d.client.readStore(ctx, d.store)
	if err == nil && again.UUID != s.UUID {
		err = errclass.Errorf(errclass.Transient, "the store %s was replaced by the one with the UUID %s", d.store, again.UUID)
	}
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(v.volumes)) {
		known[v.volumes[name].UUID] = true
		r, uid, ok := parseVolumeName(name)
		if !ok || (r != roleHead && r != roleSnapshot && r != roleImage) {
			continue
		}
		if _, gone := v.volumes[volumeName(roleGone, uid)]; gone && r == roleSnapshot {
			continue
		}
		if err := d.readObject(ctx, v, name, r, uid); err != nil {
			return nil, err
		}
	}
	maps.DeleteFunc(d.attributes, func(uuid, _ string) bool { return !known[uuid] })
	return v, nil
}

// readObject adds the object that a volume is, if it is one.
func (d *Disk) readObject(ctx context.Context, v *view, name string, r role, uid disk.UID) error {
	o := object{volume: name}
	found, err := d.readVersioned(ctx, v, name, &o.entry)
	if err != nil || !found {
		return err
	}
	if err := o.validate(r, uid); err != nil {
		v.unreadable[name] = fmt.Errorf("%w: the volume %s: %w", errclass.Corrupt, name, err)
		return nil
	}
	if o.Sealed {
		beside := volumeName(roleSeal, uid)
		if _, there := v.volumes[beside]; !there {
			return nil
		}
		found, err := d.readVersioned(ctx, v, beside, &o.seal)
		if err != nil {
			return err
		}
		if bad := v.unreadable[beside]; bad != nil {
			v.unreadable[name] = bad
		}
		if !found {
			return nil
		}
	}
	v.objects[uid] = o
	return nil
}

// readVersioned decodes the attribute of a volume. It is not found if the volume has none, or an unreadable one.
func (d *Disk) readVersioned(ctx context.Context, v *view, name string, into any) (found bool, err error) {
	uuid := v.volumes[name].UUID
	value, known := d.attributes[uuid]
	if !known {
		if value, err = d.client.readAttribute(ctx, v.store, name, attribute); err != nil || value == "" {
			return false, err
		}
		d.attributes[uuid] = value
	}
	var version struct {
		Format int `json:"format"`
	}
	err = json.Unmarshal([]byte(value), &version)
	if err == nil && version.Format != formatVersion {
		err = errclass.Errorf(errclass.Invalid, "format version %d, and this Varve knows %d: use a newer Varve",
			version.Format, formatVersion)
	}
	if err == nil {
		err = json.Unmarshal([]byte(value), into)
	}
	if err != nil {
		v.unreadable[name] = fmt.Errorf("read the attribute of the volume %s: %w", name, err)
		return false, nil
	}
	return true, nil
}

// writeAttribute writes the attribute of a volume that is not frozen.
func (d *Disk) writeAttribute(ctx context.Context, v *view, name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	delete(d.attributes, v.volumes[name].UUID) // if the call fails, what the volume has is not known
	return d.client.setAttribute(ctx, v.store, name, string(data))
}

func (d *Disk) writeEntry(ctx context.Context, v *view, name string, e entry) error {
	e.Format = formatVersion
	return d.writeAttribute(ctx, v, name, e)
}

func (v *view) findByName(name disk.Name) (object, error) {
	for _, o := range v.objects {
		if o.Name == name {
			return o, nil
		}
	}
	return object{}, errclass.Errorf(errclass.NotFound, "store %s has no %q", v.store.Name, name)
}

// findIntact returns an object whose data can be used.
func (v *view) findIntact(name disk.Name) (object, error) {
	o, err := v.findByName(name)
	if err == nil && o.seal.Damaged != "" {
		err = errclass.Errorf(errclass.Corrupt, "the data of %q (%s) is damaged: delete it, and make it again", name, o.UID)
	}
	return o, err
}

// findImage returns an image, damaged or not. An error is of class NotFound if the image does not have this UID.
func (v *view) findImage(name disk.Name, uid disk.UID) (object, error) {
	o, err := v.findByName(name)
	if err == nil {
		err = v.describe(o).CheckImage(uid)
	}
	if err != nil {
		return object{}, err
	}
	return o, nil
}

// chain returns the volumes that an object's data is in: its own first, and then each one's parent.
func (v *view) chain(name string) []string {
	var all []string
	for name != "" && len(all) <= len(v.volumes) {
		all = append(all, name)
		name = v.volumes[name].Driver.Volume.Parent
	}
	return all
}

// parentOf returns the snapshot or the image that an object is a clone of, or nothing.
func (v *view) parentOf(o object) disk.UID {
	if o.Kind == disk.KindImage {
		return "" // what it shares with its head is nobody's concern
	}
	for _, name := range v.chain(o.volume)[1:] {
		if _, uid, ok := parseVolumeName(name); ok && v.objects[uid].volume == name {
			return uid
		}
	}
	return ""
}

func (v *view) describe(o object) disk.Object {
	state := disk.StateReady
	switch {
	case o.seal.Damaged != "":
		state = disk.StateDamaged
	case o.Kind == disk.KindHead:
		state = disk.StateWritable
	}
	return disk.Object{
		Name: o.Name, UID: o.UID, Volume: o.Volume, Parent: v.parentOf(o), Kind: o.Kind, Bytes: o.Bytes, State: state,
		Checksum: o.seal.Checksum,
	}
}

// checkFree returns an error if a name or a UID is taken or being made. The caller has the lock.
func (d *Disk) checkFree(v *view, name disk.Name, uid disk.UID) error {
	for _, o := range v.objects {
		if o.Name == name || o.UID == uid {
			return errclass.Errorf(errclass.Conflict, "the %s %q with the UID %s is there already", o.Kind, o.Name, o.UID)
		}
		if o.Kind == disk.KindSnapshot && o.Origin == uid {
			return errclass.Errorf(errclass.Conflict, "the UID %s belongs to a deleted head with snapshots: use another "+
				"UID", uid)
		}
	}
	for pendingUID, pendingName := range d.pending {
		if pendingUID == uid || pendingName == name {
			return errclass.Errorf(errclass.Transient, "%q with the UID %s is being made: try again", pendingName, pendingUID)
		}
	}
	_, gone := v.volumes[volumeName(roleGone, uid)]
	if _, left := v.volumes[volumeName(roleSnapshot, uid)]; left && gone {
		return errclass.Errorf(errclass.Conflict, "a deleted snapshot has the UID %s, and images still need its data: use "+
			"another UID", uid)
	}
	for _, r := range []role{roleHead, roleSnapshot, roleImage, roleBase, roleSeal, roleGone} {
		if err := v.unreadable[volumeName(r, uid)]; err != nil {
			return errclass.Errorf(errclass.Conflict, "it is there already, and cannot be read: remove it by hand: %w", err)
		}
	}
	return nil
}
