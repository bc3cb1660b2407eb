package csi

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	snapshotDir    = "snapshots"
	snapshotSuffix = ".snap"
	// snapshotSeparator stands between the volume and the snapshot's own name in a snapshot's ID. No ID of a volume has it.
	snapshotSeparator = "~"
)

// errBadSnapshotID says that an ID cannot be that of a snapshot.
var errBadSnapshotID = errors.New("not the id of a snapshot")

// snapshot is a clone of a volume's file. The volume may be gone.
type snapshot struct {
	id      string // VOLUME~NAME
	volume  string // the ID of the volume
	file    string
	bytes   int64
	created time.Time
}

// snapshotFile returns the path of a snapshot, and the ID of its volume.
func (s store) snapshotFile(id string) (file, volume string, err error) {
	volume, name, found := strings.Cut(id, snapshotSeparator)
	if !found || checkID(volume) != nil || checkID(name) != nil {
		return "", "", fmt.Errorf("%q: %w", id, errBadSnapshotID)
	}
	return filepath.Join(s.root, snapshotDir, id+snapshotSuffix), volume, nil
}

// findSnapshot returns the snapshot id. A missing one, or an ID that no snapshot can have, is fs.ErrNotExist.
func (s store) findSnapshot(id string) (snapshot, error) {
	file, volume, err := s.snapshotFile(id)
	if err != nil {
		return snapshot{}, errors.Join(err, fs.ErrNotExist)
	}
	info, err := os.Stat(file)
	if err != nil {
		return snapshot{}, fmt.Errorf("the snapshot %s: %w", id, err)
	}
	return snapshot{id: id, volume: volume, file: file, bytes: info.Size(), created: info.ModTime()}, nil
}

// createSnapshot makes the snapshot name of the volume. An existing one of the same name is returned, or is errDiffers
// if it is of another volume.
func (s store) createSnapshot(volume, name string) (snapshot, error) {
	if err := checkID(name); err != nil {
		return snapshot{}, err
	}
	all, err := s.listSnapshots()
	if err != nil {
		return snapshot{}, err
	}
	id := volume + snapshotSeparator + name
	for _, other := range all {
		switch {
		case other.id == id:
			return other, nil
		case strings.HasSuffix(other.id, snapshotSeparator+name):
			return snapshot{}, fmt.Errorf("the snapshot %s %w: it is of the volume %s", name, errDiffers, other.volume)
		}
	}
	source, err := s.findVolume(volume)
	if err != nil {
		return snapshot{}, err
	}
	file, _, err := s.snapshotFile(id)
	if err != nil {
		return snapshot{}, err
	}
	err = os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = flushFile(source)
	}
	if err == nil {
		err = cloneFile(source, file+newSuffix)
	}
	if err == nil {
		err = os.Rename(file+newSuffix, file)
	}
	if err != nil {
		return snapshot{}, fmt.Errorf("make the snapshot %s: %w", id, err)
	}
	return s.findSnapshot(id)
}

// removeSnapshot deletes a snapshot. A missing one is no error. Volumes that were made from it keep their blocks.
func (s store) removeSnapshot(id string) error {
	file, _, err := s.snapshotFile(id)
	if err != nil {
		return nil //nolint:nilerr // no snapshot can have that ID, so it is gone
	}
	if err := errors.Join(skipMissing(os.Remove(file+newSuffix)), skipMissing(os.Remove(file))); err != nil {
		return fmt.Errorf("remove the snapshot %s: %w", id, err)
	}
	return nil
}

// listSnapshots returns every snapshot, in the order of their IDs.
func (s store) listSnapshots() ([]snapshot, error) {
	entries, err := os.ReadDir(filepath.Join(s.root, snapshotDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	var out []snapshot
	for _, e := range entries {
		id, complete := strings.CutSuffix(e.Name(), snapshotSuffix)
		if !complete {
			continue
		}
		snap, err := s.findSnapshot(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in the meantime, or not ours
		}
		if err != nil {
			return nil, err
		}
		out = append(out, snap)
	}
	slices.SortFunc(out, func(a, b snapshot) int { return cmp.Compare(a.id, b.id) })
	return out, nil
}
