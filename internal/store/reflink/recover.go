package reflink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/varvebackup/varve/internal/store/disk"
)

// recoverState reads what the disk holds, and removes what nothing refers to.
func (d *Disk) recoverState(ctx context.Context) error {
	if err := d.removeUnfinished("", headerFile); err != nil {
		return err
	}
	if err := d.recoverGroups(ctx, imagesDir); err != nil {
		return err
	}
	volumes, err := os.ReadDir(filepath.Join(d.dir, volumesDir))
	if err != nil {
		return err
	}
	for _, v := range volumes {
		volume := filepath.Join(volumesDir, v.Name())
		if err := d.recoverGroups(ctx, volume); err != nil {
			return err
		}
		if err := removeEmptyDirectory(filepath.Join(d.dir, volume)); err != nil {
			return err
		}
	}
	return d.checkUnique()
}

// recoverGroups reads the directories in parent, each of which has a meta.json.
func (d *Disk) recoverGroups(ctx context.Context, parent string) error {
	entries, err := os.ReadDir(filepath.Join(d.dir, parent))
	if err != nil {
		return err
	}
	for _, e := range entries {
		group := filepath.Join(parent, e.Name())
		unfinished := strings.HasSuffix(group, newSuffix) || strings.HasSuffix(group, goneSuffix)
		err := ctx.Err()
		switch {
		case err != nil:
		case unfinished:
			err = d.removeLeftover(group)
		default:
			err = d.recoverGroup(group)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// recoverGroup reads a directory with its meta.json. One that cannot be read is left alone: it may be the only copy.
func (d *Disk) recoverGroup(group string) error {
	m, err := readMetadata(filepath.Join(d.dir, group, metadataFile))
	if err == nil {
		err = checkPlace(group, m)
	}
	if err != nil {
		d.recovered = append(d.recovered, fmt.Sprintf("left %s alone, because its %s is unreadable: %v", group, metadataFile,
			err))
		return nil
	}
	if err := d.removeUnfinished(group, metadataFile); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, o := range m.Objects {
		there := located{entry: o, group: group}
		path := d.dataPath(there)
		known[filepath.Base(path)] = true
		if err := errors.Join(d.undoGrowth(path, o), checkIntact(path, o), d.readDamage(there)); err != nil {
			d.damaged[o.UID] = true
			d.recovered = append(d.recovered, fmt.Sprintf("%s %q (%s) is damaged: %v", o.Kind, o.Name, o.UID, err))
		}
	}
	d.groups[group] = m
	if !known["head"] && filepath.Dir(group) != imagesDir {
		if err := d.removeLeftover(filepath.Join(group, "head")); err != nil {
			return err
		}
	}
	snapshots, err := os.ReadDir(filepath.Join(d.dir, group, snapshotsDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, s := range snapshots {
		if known[s.Name()] {
			continue
		}
		if err := d.removeLeftover(filepath.Join(group, snapshotsDir, s.Name())); err != nil {
			return err
		}
	}
	return nil
}

// checkPlace returns an error if the objects of a directory do not belong there.
func checkPlace(group string, m metadata) error {
	first := m.Objects[0]
	image := filepath.Dir(group) == imagesDir
	if image != (first.Kind == disk.KindImage) || (image && string(first.UID) != filepath.Base(group)) {
		return fmt.Errorf("the %s %s is in the wrong directory", first.Kind, first.UID)
	}
	return nil
}

// checkIntact returns an error if a file is not what the metadata says.
func checkIntact(path string, o entry) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != o.Bytes {
		return fmt.Errorf("%s must be a regular file of %d bytes: it has %d, and its mode is %s", path, o.Bytes, info.Size(), info.Mode())
	}
	if o.Kind == disk.KindHead {
		return nil
	}
	sealed, err := isImmutable(path)
	if err == nil && !sealed {
		err = fmt.Errorf("%s is not immutable, so somebody may have changed it", path)
	}
	return err
}

// checkUnique returns an error if two directories hold objects of one name or UID, as a copy of a directory does.
func (d *Disk) checkUnique() error {
	names, uids := map[disk.Name]string{}, map[disk.UID]string{}
	for o := range d.allObjects() {
		if other := names[o.Name] + uids[o.UID]; other != "" {
			return fmt.Errorf("%s and %s both hold %q or %s: move one of them away", other, o.group, o.Name, o.UID)
		}
		names[o.Name], uids[o.UID] = o.group, o.group
	}
	return nil
}

// removeUnfinished removes what crashes have left beside a file of a directory that is replaced by renames.
func (d *Disk) removeUnfinished(dir, name string) error {
	entries, err := os.ReadDir(filepath.Join(d.dir, dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name+".") && strings.HasSuffix(e.Name(), newSuffix) {
			if err := d.removeLeftover(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeLeftover removes what nothing refers to, and notes it.
func (d *Disk) removeLeftover(relative string) error {
	path := filepath.Join(d.dir, relative)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := removeTree(path); err != nil {
		return fmt.Errorf("remove what a crash has left: %w", err)
	}
	d.recovered = append(d.recovered, "removed "+relative+", which a crash had left")
	return nil
}
