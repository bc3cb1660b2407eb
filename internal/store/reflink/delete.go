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

// Delete implements [disk.Disk].
func (d *Disk) Delete(ctx context.Context, name disk.Name) error {
	if err := d.deleteObject(ctx, name); err != nil {
		return fmt.Errorf("delete %q: %w", name, describeFull(err))
	}
	return nil
}

func (d *Disk) deleteObject(ctx context.Context, name disk.Name) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkOpen(ctx); err != nil {
		return err
	}
	o, err := d.findByName(name)
	if err != nil {
		return err
	}
	if err := d.checkUnused(o); err != nil {
		return err
	}
	left := d.groups[o.group].without(o.entry)
	rest := d.dataPath(o)
	dir := filepath.Join(d.dir, o.group)
	forget := func() error { return d.writeMetadata(dir, left) }
	if len(left.Objects) == 0 {
		rest = dir + goneSuffix
		forget = func() error { return d.renameGroup(dir, rest) }
	}
	if err := d.withReserve(forget); err != nil {
		return err
	}
	delete(d.damaged, o.UID)
	if d.groups[o.group] = left; len(left.Objects) == 0 {
		delete(d.groups, o.group)
	}
	err = d.withReserve(func() error { return errors.Join(removeTree(rest), d.removeVolume(o.group)) })
	if err == nil {
		err = d.reach("done")
	}
	if err != nil {
		return fmt.Errorf("it is deleted, but its space is free only when the disk is opened again: %w", err)
	}
	_ = d.fillReserve() // the object is deleted, and the next deletion or Open tries that again
	return nil
}

// checkUnused returns Conflict if an object is in use, or if an object of another directory is a clone of it.
func (d *Disk) checkUnused(o located) error {
	if n := d.leases[o.UID]; n > 0 {
		return errclass.Errorf(errclass.Conflict, "it is in use (%d times): end that first", n)
	}
	var clones []disk.Name
	for other := range d.allObjects() {
		if other.Parent == o.UID && other.group != o.group {
			clones = append(clones, other.Name)
		}
	}
	return disk.CheckClones(clones)
}

// renameGroup makes the last object of a directory cease to exist.
func (d *Disk) renameGroup(dir, gone string) error {
	if err := removeTree(gone); err != nil {
		return err
	}
	if err := os.Rename(dir, gone); err != nil && !errors.Is(err, os.ErrNotExist) { // a call that failed has renamed it
		return err
	}
	if err := d.reach("rename"); err != nil {
		return err
	}
	if err := durable.Sync(filepath.Dir(dir)); err != nil {
		return fmt.Errorf("%w: %w", errclass.Unknown, err)
	}
	return d.reach("gone")
}
