// Package csi is the box's storage: a CSI node plugin and a provisioner in one process, one for each node.
//
// A volume is one sparse file on the machine's disk, attached to a loop device on the node that it is pinned to. A
// Filesystem volume contains ext4, mounted with discard; a Block volume is the loop device. So capacity is real (a
// full volume returns ENOSPC), trimmed space returns to the machine, and nothing needs a kernel module beyond loop and ext4.
//
// The plugin keeps no state: it asks the kernel which file is attached where, and what is mounted. Each call is
// idempotent, and may be killed and called again.
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

	"github.com/varvebackup/varve/box/internal/loop"
)

// store is the directory with the volumes of one node.
type store struct{ dir string }

// errBadID says that an ID cannot have come from this store.
var errBadID = errors.New("not the id of a volume")

// volumeFile returns the path of the volume id. IDs come from outside, so volumeFile rejects one that could leave the directory.
func (s store) volumeFile(id string) (string, error) {
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\x00") {
		return "", fmt.Errorf("%q: %w", id, errBadID)
	}
	return filepath.Join(s.dir, id+".img"), nil
}

// createVolume creates the volume id with the given size in bytes. With format it contains an empty ext4. An existing
// volume is kept. The file gets its name when it is complete, so that a volume is never half-formatted.
func (s store) createVolume(ctx context.Context, id string, bytes int64, format bool) error {
	file, err := s.volumeFile(id)
	if err != nil {
		return err
	}
	if info, err := os.Stat(file); err == nil {
		if info.Size() != bytes {
			return fmt.Errorf("the volume %s exists with %d bytes, not %d", id, info.Size(), bytes)
		}
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("create the volume %s: %w", id, err)
	}
	tmp := file + ".new"
	if err := errors.Join(createBlank(tmp, bytes), formatIf(ctx, format, tmp), os.Rename(tmp, file)); err != nil {
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

// removeVolume detaches the volume id and deletes its file. A missing volume is no error.
func (s store) removeVolume(id string) error {
	file, err := s.volumeFile(id)
	if err != nil {
		return err
	}
	if err := s.detachVolume(id); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(skipMissing(os.Remove(file+".new")), skipMissing(os.Remove(file))); err != nil {
		return fmt.Errorf("remove the volume %s: %w", id, err)
	}
	return nil
}

func (s store) attachVolume(id string) (loop.Device, error) {
	file, err := s.volumeFile(id)
	if err != nil {
		return loop.Device{}, err
	}
	return loop.Attach(file)
}

func (s store) detachVolume(id string) error {
	file, err := s.volumeFile(id)
	if err != nil {
		return err
	}
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
