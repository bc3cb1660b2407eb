package moverpod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
)

// lostAndFound is a directory in the root of every ext4 file system.
const lostAndFound = "lost+found"

// sourceDisk returns the path of the disk that a volume is, or "" if it is a tree of files.
func (r *run) sourceDisk() (string, error) {
	if r.Job.VolumeMode == corev1.PersistentVolumeBlock {
		return r.Files.Volume, nil
	}
	is, err := isDiskVolume(r.Files.Volume)
	if err != nil || !is {
		return "", err
	}
	return filepath.Join(r.Files.Volume, datamove.ImageFile), nil
}

// isDiskVolume says whether a Filesystem volume has a disk and nothing else. The disk must be a regular file: a link could lead to what
// is the pod's own, such as the keys of the repository. A lost+found with content is somebody's files.
func isDiskVolume(root string) (bool, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return false, fmt.Errorf("look at the volume: %w", err)
	}
	found := false
	for _, e := range entries {
		switch {
		case e.Name() == datamove.ImageFile && e.Type().IsRegular():
			info, err := e.Info()
			if err != nil {
				return false, fmt.Errorf("look at the volume: %w", err)
			}
			found = info.Size() > 0
		case e.Name() == lostAndFound && e.IsDir():
			inside, err := os.ReadDir(filepath.Join(root, lostAndFound))
			if err != nil {
				return false, fmt.Errorf("look at the volume: %w", err)
			}
			if len(inside) > 0 {
				return false, nil
			}
		default:
			return false, nil
		}
	}
	return found, nil
}

// targetImage returns the path of the image on a Filesystem volume that is restored to.
func (r *run) targetImage() (string, error) {
	path := filepath.Join(r.Files.Volume, datamove.ImageFile)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return path, nil
	case err != nil:
		return "", fmt.Errorf("look at the volume: %w", err)
	case !info.Mode().IsRegular():
		return "", lasting(errclass.Errorf(errclass.Conflict, "the target volume has a %s that is no file (%s)", datamove.ImageFile, info.Mode()), "restore to a new claim")
	}
	return path, nil
}
