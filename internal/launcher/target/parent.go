package target

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/manifest"
)

// Manifest reads the manifest of a complete backup.
func (v *Volume) Manifest(directory string) (*manifest.Manifest, error) {
	f, err := v.root.Open(path.Join(directory, layout.BackupManifest))
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, manifest.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read manifest of %s: %w", directory, err)
	}
	m, err := manifest.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("read manifest of %s: %w", directory, err)
	}
	return m, nil
}

// FindParent looks among the complete backups beside directory for the one with the UID. It returns its directory
// and manifest, or "" and nil. What cannot be read is no parent: the chain is then told by the manifest alone.
func (v *Volume) FindParent(directory, backupUID string) (string, *manifest.Manifest, error) {
	around := path.Dir(directory)
	entries, err := fs.ReadDir(v.root.FS(), around)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, fmt.Errorf("look for the parent backup in %s: %w", around, err)
	}
	for _, e := range entries {
		candidate := path.Join(around, e.Name())
		if !e.IsDir() || strings.HasSuffix(e.Name(), layout.PartialSuffix) || candidate == directory {
			continue
		}
		if m, err := v.Manifest(candidate); err == nil && m.Backup.UID == backupUID {
			return candidate, m, nil
		}
	}
	return "", nil, nil
}

// Backing returns the backing file's name, relative to the directory of a new backup, for a volume that continues the
// parent, or "" if the parent has no file of it.
func (v *Volume) Backing(parentDirectory string, parent *manifest.Manifest, volume string) string {
	if parent == nil {
		return ""
	}
	entry := parent.Volume(volume)
	if entry == nil {
		return ""
	}
	info, err := v.root.Stat(path.Join(parentDirectory, entry.File))
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return path.Join(Beside(parentDirectory), entry.File)
}

// Beside is a backup's directory as seen from another backup's directory of the same machine.
func Beside(directory string) string { return path.Join("..", path.Base(directory)) }
