package reflink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
)

// Create implements [disk.Disk].
func (d *Disk) Create(ctx context.Context, head disk.Name, from disk.Source) error {
	if err := d.createHead(ctx, head, from); err != nil {
		return fmt.Errorf("create head %q: %w", head, describeFull(err))
	}
	return nil
}

func (d *Disk) createHead(ctx context.Context, name disk.Name, from disk.Source) error {
	group := filepath.Join(volumesDir, string(from.Volume), string(from.UID))
	wanted := entry{Name: name, UID: from.UID, Kind: disk.KindHead, Bytes: from.Bytes}
	if err := errors.Join(wanted.validate(), from.Volume.Validate(), ctx.Err()); err != nil {
		return err
	}
	source, done, err := d.beginCreate(&wanted, group, from)
	if err != nil || done {
		return err
	}
	if source != nil {
		defer source.Close() //nolint:errcheck // it has no error
	}
	return d.finishPending(wanted, group, d.writeReplica(ctx, wanted, group, source))
}

// beginCreate reserves the new head, and leases its source. Done means that the head is there.
func (d *Disk) beginCreate(wanted *entry, group string, made disk.Source) (source *lease, done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen(context.Background()); err != nil {
		return nil, false, err
	}
	from := made.From
	parent, err := d.findParent(wanted, made)
	if err != nil {
		return nil, false, fmt.Errorf("find the source: %w", err)
	}
	if there, ok := d.findByUID(wanted.UID); ok {
		same := there.Name == wanted.Name && there.group == group && there.Kind == wanted.Kind &&
			there.Origin == wanted.Origin && there.Bytes == wanted.Bytes
		if same && !d.damaged[there.UID] {
			return nil, true, nil
		}
	}
	switch err := d.checkFree(wanted.Name, wanted.UID); {
	case err != nil:
		return nil, false, err
	case from != "" && parent.Kind == disk.KindHead:
		return nil, false, errclass.Errorf(errclass.Invalid, "%q is a head: clone a snapshot of it", from)
	case from != "" && wanted.Bytes < parent.Bytes:
		return nil, false, errclass.Errorf(errclass.Invalid, "%d bytes are fewer than the %d of %q", wanted.Bytes,
			parent.Bytes, from)
	}
	if err := d.prepareGroup(group); err != nil {
		return nil, false, err
	}
	if from != "" {
		source = d.leaseObject(parent)
		d.cloning[wanted.UID] = parent.UID
	}
	d.pending[wanted.UID] = wanted.Name
	return source, false, nil
}

// findParent returns what a head is made of, if anything, and notes it in the head's entry.
func (d *Disk) findParent(wanted *entry, made disk.Source) (located, error) {
	if made.From == "" {
		return located{}, nil
	}
	parent, err := d.findIntact(made.From)
	if err != nil {
		return located{}, err
	}
	wanted.Origin = parent.UID
	if !made.Independent {
		wanted.Parent = parent.UID
	}
	return parent, nil
}

// prepareGroup makes an empty directory in which a group is made, under its temporary name, beside nothing of a group
// that failed before.
func (d *Disk) prepareGroup(group string) error {
	path := filepath.Join(d.dir, group)
	if _, ok := d.groups[group]; ok {
		return errclass.Errorf(errclass.Conflict, "%s belongs to snapshots of a deleted head: use another UID", path)
	}
	if _, err := os.Lstat(path); err == nil {
		if _, err := readMetadata(filepath.Join(path, metadataFile)); err != nil {
			return fmt.Errorf("%s is there already, and cannot be read: remove it by hand: %w", path, err)
		}
	}
	if err := errors.Join(removeTree(path), removeTree(path+newSuffix)); err != nil {
		return err
	}
	if err := makeDirectory(filepath.Dir(path)); err != nil {
		return err
	}
	return makeDirectory(path + newSuffix)
}

// writeReplica makes the directory of a replica whose only object is a head.
func (d *Disk) writeReplica(ctx context.Context, head entry, group string, source *lease) error {
	dir := filepath.Join(d.dir, group+newSuffix)
	err := makeDirectory(filepath.Join(dir, snapshotsDir))
	if err == nil {
		err = d.reach("directory")
	}
	if err == nil {
		err = d.cloneData(ctx, source, filepath.Join(dir, "head"), head.Bytes)
	}
	if err == nil {
		err = d.writeMetadata(dir, metadata{Format: formatVersion, Objects: []entry{head}})
	}
	return err
}

// cloneData makes a durable file of a size that has the blocks of the source, which may be nil.
func (d *Disk) cloneData(ctx context.Context, source *lease, path string, size int64) (err error) {
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if source != nil {
		if err := d.cloneBlocks(ctx, source, to); err != nil {
			return err
		}
		if err := d.reach("clone"); err != nil {
			return err
		}
	}
	if err := to.Truncate(size); err != nil {
		return fmt.Errorf("give %s a size of %d bytes: %w", path, size, err)
	}
	if err := to.Sync(); err != nil {
		return err
	}
	return d.reach("data")
}

// writeMetadata replaces the meta.json of a directory.
func (d *Disk) writeMetadata(dir string, m metadata) error {
	data, err := encodeIndented(m)
	if err != nil {
		return err
	}
	if len(m.Objects) > maxObjects {
		return errclass.Errorf(errclass.Exhausted, "%s has %d snapshots: delete some", dir, maxObjects-1)
	}
	if err := durable.Write(filepath.Join(dir, metadataFile), data); err != nil {
		return err
	}
	return d.reach("metadata")
}

// finishPending gives a complete directory its name, which makes its only object exist, or removes one that failed.
func (d *Disk) finishPending(made entry, group string, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pending, made.UID)
	delete(d.cloning, made.UID)
	path := filepath.Join(d.dir, group)
	if err != nil {
		return errors.Join(err, removeTree(path+newSuffix), d.removeVolume(group))
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return err
	}
	if err := d.reach("rename"); err != nil {
		return err
	}
	if err := durable.Sync(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%w: %w", errclass.Unknown, err)
	}
	d.groups[group] = metadata{Format: formatVersion, Objects: []entry{made}}
	return d.reach("done")
}

// removeVolume removes the directory of a volume without replicas.
func (d *Disk) removeVolume(group string) error {
	if volumeOf(group) == "" {
		return nil
	}
	return removeEmptyDirectory(filepath.Dir(filepath.Join(d.dir, group)))
}
