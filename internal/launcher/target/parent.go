package target

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/manifest"
)

// The problems that BrokenChains finds on a volume.
var (
	// ErrParentMissing: a directory, a manifest or a disk's file is missing.
	ErrParentMissing = errors.New("a backup that this one would continue is missing")
	// ErrParentChanged: something else is in its place.
	ErrParentChanged = errors.New("a backup that this one would continue was changed")
)

// Parent identifies a backup on the volume. Only both fields together say which backup it is: a directory can be
// created again, and a copy of a manifest can be anywhere.
type Parent struct {
	// Directory is relative to the volume's root.
	Directory string
	// ManifestSHA256 is the hash of the backup's manifest in lower case hex.
	ManifestSHA256 string
}

// Manifest returns the manifest of a complete backup and its SHA-256 in lower case hex. fs.ErrNotExist: there is none.
func (v *Volume) Manifest(directory string) (*manifest.Manifest, string, error) {
	data, err := v.readManifest(directory)
	if err != nil {
		return nil, "", fmt.Errorf("read manifest of %s: %w", directory, err)
	}
	m, err := manifest.Decode(data)
	if err != nil {
		return nil, "", fmt.Errorf("read manifest of %s: %w", directory, err)
	}
	return m, sha256Hex(data), nil
}

func sha256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// errNotRegular says that something that must be a regular file is not one.
var errNotRegular = errors.New("not a regular file")

func (v *Volume) readManifest(directory string) ([]byte, error) {
	// A named pipe must not block the reader.
	f, err := v.root.OpenFile(path.Join(directory, layout.BackupManifest), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	return io.ReadAll(io.LimitReader(f, manifest.MaxBytes+1))
}

// BrokenChains follows each volume from the parent to the full backup at the beginning of its chain. It returns the
// volumes whose chain is not whole, each with an error that wraps ErrParentMissing or ErrParentChanged. It compares
// each manifest with the hash in the child's manifest, or for the first one with the caller's. It does not hash the disks' files.
//
// An error means that the volume could not be read: then nothing is known about any chain.
func (v *Volume) BrokenChains(parent Parent, volumes []string) (map[string]error, error) {
	broken := map[string]error{}
	for at := parent; len(volumes) > 0; {
		m, problem, err := v.verifiedManifest(at)
		if err != nil {
			return nil, err
		}
		if problem != nil {
			for _, name := range volumes {
				broken[name] = problem
			}
			return broken, nil
		}
		var further []string
		for _, name := range volumes {
			problem, err := v.checkFile(at.Directory, m.Volume(name))
			switch {
			case err != nil:
				return nil, err
			case problem != nil:
				broken[name] = problem
			case m.Volume(name).Type != manifest.Full:
				further = append(further, name)
			}
		}
		volumes = further
		if m.Parent != nil {
			at = Parent{Directory: path.Join(at.Directory, m.Parent.Directory), ManifestSHA256: m.Parent.ManifestSHA256}
		}
	}
	return broken, nil
}

// verifiedManifest reads the manifest of a backup. problem says why it is not the one that parent names.
func (v *Volume) verifiedManifest(parent Parent) (m *manifest.Manifest, problem, err error) {
	if !fs.ValidPath(parent.Directory) || parent.Directory == "." {
		return nil, fmt.Errorf("%w: %q is no directory of a backup", ErrParentChanged, parent.Directory), nil
	}
	data, err := v.readManifest(parent.Directory)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s", ErrParentMissing, parent.Directory), nil
	case errors.Is(err, errNotRegular), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR):
		return nil, fmt.Errorf("%w: %s: %w", ErrParentChanged, parent.Directory, err), nil
	case err != nil:
		return nil, nil, fmt.Errorf("read manifest of %s: %w", parent.Directory, err)
	case sha256Hex(data) != parent.ManifestSHA256:
		return nil, fmt.Errorf("%w: the manifest of %s is not the one that was written", ErrParentChanged, parent.Directory), nil
	}
	if m, err = manifest.Decode(data); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrParentChanged, parent.Directory, err), nil
	}
	return m, nil, nil
}

// checkFile returns what is wrong with a disk's file. entry is nil if the backup does not have the disk.
func (v *Volume) checkFile(directory string, entry *manifest.Volume) (problem, err error) {
	if entry == nil {
		return fmt.Errorf("%w: %s has no file of the disk", ErrParentMissing, directory), nil
	}
	name := path.Join(directory, entry.File)
	switch info, err := v.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s", ErrParentMissing, name), nil
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", name, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is no file", ErrParentChanged, name), nil
	}
	return nil, nil
}

// RelativeTo returns the path of another backup's directory from a backup's own. Both are relative to the volume's root.
func RelativeTo(own, other string) (string, error) {
	relative, err := filepath.Rel(own, other)
	return filepath.ToSlash(relative), err
}
