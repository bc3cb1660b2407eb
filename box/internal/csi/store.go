// Package csi is the box's storage: a CSI plugin (identity, controller and node service) and a provisioner in one process,
// one for each node.
//
// A volume is one sparse file on the box's XFS, attached to a loop device on the node that it is pinned to. A
// Filesystem volume contains ext4, mounted with discard; a Block volume is the loop device. So capacity is real (a
// full volume returns ENOSPC), and trimmed space returns to the machine.
//
// A snapshot is a clone of the volume's file that shares its blocks: it is made at once, whatever the size, and between two
// writes, so that it has what a power failure at that moment would have left. What was written through the page cache before
// the call is in it. A volume from a snapshot, or from another volume, is such a clone too. Every node sees
// all volumes and snapshots.
//
// The plugin keeps no state: it asks the kernel which file is attached where, and what is mounted, and files say by name,
// size, time and mode what they are. Each call is idempotent, and may be killed and called again.
package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/loop"
)

// store is the directory with the volumes of all nodes and the snapshots, as one node uses it.
type store struct {
	root string // has a directory for each node, and one for the snapshots
	node string // where new volumes go
	// folder is where, below the node's directory, the volumes are that no other driver is to find, or "".
	folder string
}

const (
	volumeSuffix = ".img"
	newSuffix    = ".new" // of a file that is not complete yet
	// maxNameBytes bounds the names of volumes and snapshots as CSI does, so that a file name with both still fits.
	maxNameBytes = 128
)

var (
	// errBadID says that an ID cannot have come from this store.
	errBadID = errors.New("not the id of a volume")
	// errDiffers says that a volume or snapshot of that name exists, and is another one.
	errDiffers = errors.New("exists already, with other properties")
	// errTooSmall says that a volume has less room than what it is to be made from.
	errTooSmall = errors.New("smaller than its source")
)

// volumeFile returns the path of the volume id on this node. IDs come from outside, so volumeFile rejects one that could
// leave the directory, or be taken for a snapshot.
func (s store) volumeFile(id string) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	return filepath.Join(s.root, s.node, s.folder, id+volumeSuffix), nil
}

func checkID(id string) error {
	if id == "" || id == "." || id == ".." || len(id) > maxNameBytes || strings.ContainsAny(id, "/\x00"+snapshotSeparator) {
		return fmt.Errorf("%q: %w", id, errBadID)
	}
	return nil
}

// findVolume returns the path of the volume id, on whatever node it is. A missing volume is fs.ErrNotExist.
func (s store) findVolume(id string) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	nodes, err := os.ReadDir(s.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for the volume %s: %w", id, err)
	}
	for _, n := range nodes {
		file := filepath.Join(s.root, n.Name(), s.folder, id+volumeSuffix)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("the volume %s: %w", id, fs.ErrNotExist)
}

// volumeSpec describes a volume to create.
type volumeSpec struct {
	bytes      int64
	filesystem bool   // contains an ext4 of the volume's size, empty unless it has a source
	source     string // the file with the volume's first content, or ""
	readOnly   bool
	shared     bool // any node may write to it
}

// attachableFile returns the path of the volume id that this node can attach: its own, or one that all nodes share.
func (s store) attachableFile(id string) (file string, shared bool, err error) {
	file, err = store{root: s.root, node: layout.SharedName, folder: s.folder}.volumeFile(id)
	if err != nil {
		return "", false, err
	}
	if _, err := os.Stat(file); err == nil {
		return file, true, nil
	}
	file, err = s.volumeFile(id)
	return file, false, err
}

// createVolume creates the volume id. An existing volume is kept. The file gets its name when it is complete, so that a
// volume is never half-formatted.
func (s store) createVolume(ctx context.Context, id string, spec volumeSpec) error {
	if spec.shared {
		s.node = layout.SharedName
	}
	file, err := s.volumeFile(id)
	if err != nil {
		return err
	}
	if info, err := os.Stat(file); err == nil {
		if info.Size() != spec.bytes || isReadOnly(info) != spec.readOnly {
			return fmt.Errorf("the volume %s %w: %d bytes, not %d, or read-only", id, errDiffers, info.Size(), spec.bytes)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("create the volume %s: %w", id, err)
	}
	tmp := file + newSuffix
	if spec.source == "" {
		err = errors.Join(createBlank(tmp, spec.bytes), formatIf(ctx, spec.filesystem, tmp))
	} else {
		err = cloneVolume(ctx, tmp, spec)
	}
	if err == nil && spec.readOnly {
		err = os.Chmod(tmp, readOnlyMode)
	}
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		return fmt.Errorf("create the volume %s: %w", id, err)
	}
	return nil
}

// createBlank creates a sparse file and replaces an existing one.
func createBlank(path string, bytes int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(bytes), f.Sync(), f.Close())
}

func formatIf(ctx context.Context, format bool, path string) error {
	if !format {
		return nil
	}
	// No blocks are reserved for root, and mkfs.ext4 must not write zeros over holes.
	out, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("format: %w: %s", err, out)
	}
	return nil
}

// readOnlyMode is the mode of the file of a volume that nobody may write to. The driver obeys it; root's open(2) would not.
const readOnlyMode = 0o400

func isReadOnly(info fs.FileInfo) bool { return info.Mode().Perm()&0o200 == 0 }

// removeVolume detaches the volume id, on whatever node it is, and deletes its file. A missing volume is no error.
func (s store) removeVolume(id string) error {
	file, err := s.findVolume(id)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = s.volumeFile(id) // an unfinished one
	}
	if err != nil {
		return err
	}
	if err := detachFile(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(skipMissing(os.Remove(file+newSuffix)), skipMissing(os.Remove(file))); err != nil {
		return fmt.Errorf("remove the volume %s: %w", id, err)
	}
	return nil
}

// attachVolume returns the loop device of the volume id, and whether it is read-only. The nodes have one kernel, so that a
// shared volume has one device, and one file system, wherever it is mounted.
func (s store) attachVolume(id string) (dev loop.Device, readOnly bool, err error) {
	file, _, err := s.attachableFile(id)
	if err != nil {
		return loop.Device{}, false, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return loop.Device{}, false, err
	}
	if isReadOnly(info) {
		dev, err = loop.AttachReadOnly(file)
		return dev, true, err
	}
	dev, err = loop.Attach(file)
	return dev, false, err
}

// statVolume returns the path of the volume id, on whatever node it is, and what the file says about it.
func (s store) statVolume(id string) (string, fs.FileInfo, error) {
	file, err := s.findVolume(id)
	if err != nil {
		return "", nil, err
	}
	info, err := os.Stat(file)
	return file, info, err
}

// detachVolume detaches the volume id from this node. A shared one keeps its device until it is removed, because another node
// may use it.
func (s store) detachVolume(id string) error {
	file, shared, err := s.attachableFile(id)
	if err != nil || shared {
		return err
	}
	return detachFile(file)
}

func detachFile(file string) error {
	d, err := loop.Find(file)
	if errors.Is(err, loop.ErrNotAttached) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.Detach()
}

func skipMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// newStore returns the store of one of the drivers on a node of the box.
func newStore(dir layout.Box, node string, d driver) store {
	return store{root: dir.Volumes(), node: node, folder: d.folder}
}
