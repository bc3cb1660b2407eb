package collection

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/manifest"
)

// manifestName is the name of the manifest, as in a backup in push mode.
const manifestName = "backup.json"

// parent is the backup that the incremental volumes continue.
type parent struct {
	*manifest.Manifest

	// directory is relative to that of the request, and empty without a parent.
	directory string
	sha256    string
}

// readManifest reads the manifest of a directory, and its hash.
func readManifest(directory string) (*manifest.Manifest, string, error) {
	text, err := os.ReadFile(filepath.Join(directory, manifestName))
	if err != nil {
		return nil, "", err
	}
	m, err := manifest.Decode(text)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", filepath.Join(directory, manifestName), err)
	}
	sum := sha256.Sum256(text)
	return m, hex.EncodeToString(sum[:]), nil
}

// findParent returns the backup that made the base checkpoint, or nil if none is needed.
func (q *Request) findParent() (*parent, error) {
	if !q.Backup.isIncremental() || q.NoParent {
		return nil, nil //nolint:nilnil // as documented
	}
	if q.Parent != "" {
		directory, err := filepath.Abs(q.Parent)
		if err != nil {
			return nil, err
		}
		return q.openParent(directory)
	}
	beside, err := os.ReadDir(filepath.Dir(q.Directory))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, entry := range beside {
		directory := filepath.Join(filepath.Dir(q.Directory), entry.Name())
		if m, _, err := readManifest(directory); err == nil && q.isBase(m) {
			return q.openParent(directory)
		}
	}
	return nil, errclass.Errorf(ErrNoParent, "backup %s has only what changed since checkpoint %s of backup %s, and no directory beside %s has that backup",
		q.Backup.Name, q.Backup.BaseCheckpoint, q.Backup.BaseUID, q.Directory)
}

// isBase reports whether a manifest is that of the backup that the incremental volumes start from.
func (q *Request) isBase(m *manifest.Manifest) bool {
	return q.Backup.BaseCheckpoint != "" && m.Checkpoint == q.Backup.BaseCheckpoint && m.Backup.UID == q.Backup.BaseUID && m.VM == q.Backup.VM
}

// openParent checks that a directory has what the incremental volumes need.
func (q *Request) openParent(directory string) (*parent, error) {
	m, sum, err := readManifest(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errclass.Errorf(ErrNoParent, "there is no complete backup in %s: it has no %s", directory, manifestName)
	}
	if err != nil {
		return nil, err
	}
	if !q.isBase(m) {
		return nil, errclass.Errorf(ErrNoParent, "backup %s has what changed since checkpoint %s of backup %s of machine %s, and %s has checkpoint %s of backup %s of machine %s",
			q.Backup.Name, q.Backup.BaseCheckpoint, q.Backup.BaseUID, q.Backup.VM, directory, m.Checkpoint, m.Backup.UID, m.VM)
	}
	for _, v := range q.Backup.Volumes {
		if !v.Incremental {
			continue
		}
		below := m.Volume(v.Name)
		if below == nil {
			return nil, errclass.Errorf(ErrNoParent, "volume %s is incremental, and the parent in %s does not have it", v.Name, directory)
		}
		if _, err := os.Stat(filepath.Join(directory, below.File)); err != nil {
			return nil, errclass.Errorf(ErrNoParent, "the parent of volume %s: %w", v.Name, err)
		}
	}
	relative, err := filepath.Rel(q.Directory, directory)
	if err != nil {
		return nil, err
	}
	return &parent{Manifest: m, directory: relative, sha256: sum}, nil
}

// backing returns the file below that of a volume, and its format.
func (p *parent) backing(volume string) (string, disk.Format) {
	file := p.Volume(volume).File
	format := disk.QCOW2
	if filepath.Ext(file) == "."+string(disk.Raw) {
		format = disk.Raw
	}
	return filepath.Join(p.directory, file), format
}
