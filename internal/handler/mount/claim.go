package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

// maxPlugins bounds the volume plugins that are looked at in one pod's directory.
const maxPlugins = 64

// claim opens the root of a persistent volume as the kubelet mounted it for a pod:
//
//	<pods>/<pod>/volumes/<plugin>/<persistent volume>[/mount]
//
// with CSI's extra level. It must be a mount point: a directory that merely exists is what is left before the
// kubelet mounted the volume or after it unmounted it, and a backup written there would fill the node's own disk.
func (m *Mounts) claim(pod types.UID, persistentVolume string) (*os.File, error) {
	if err := element(persistentVolume); err != nil {
		return nil, fmt.Errorf("persistent volume: %w", err)
	}
	plugins, err := m.plugins(pod)
	if err != nil {
		return nil, err
	}
	for _, plugin := range plugins {
		for _, leaf := range []string{"mount", ""} {
			dir, err := openDir(m.root, path.Join(string(pod), "volumes", plugin, persistentVolume, leaf))
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("volume %s of pod %s: %w", persistentVolume, pod, err)
			}
			mounted, err := isMountRoot(dir)
			if err == nil && mounted {
				return dir, nil
			}
			if err := errors.Join(err, dir.Close()); err != nil {
				return nil, fmt.Errorf("volume %s of pod %s: %w", persistentVolume, pod, err)
			}
		}
	}
	return nil, fmt.Errorf("volume %s of pod %s: %w", persistentVolume, pod, ErrNotAttached)
}

// plugins lists the plugin directories of a pod. The kubelet owns them.
func (m *Mounts) plugins(pod types.UID) ([]string, error) {
	rel, err := below(pod, "volumes")
	if err != nil {
		return nil, err
	}
	handle, err := openDir(m.root, rel)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("pod %s: %w", pod, ErrNotAttached)
	}
	if err != nil {
		return nil, fmt.Errorf("volumes of pod %s: %w", pod, err)
	}
	defer handle.Close() //nolint:errcheck // a handle
	dir, err := os.Open(procPath(handle))
	if err != nil {
		return nil, fmt.Errorf("volumes of pod %s: %w", pod, err)
	}
	defer dir.Close() //nolint:errcheck // opened for reading
	names, err := dir.Readdirnames(maxPlugins)
	if err != nil {
		return nil, fmt.Errorf("list the volumes of pod %s: %w", pod, err)
	}
	return names, nil
}

// RemovePartial deletes a backup's unfinished directory from a claim that the attachment pod holds, whether or not
// the launcher lives. directory is relative to the claim's root, without [layout.PartialSuffix]. Links in it are
// removed, not followed. A directory that does not exist is no error; ErrNotAttached: the claim is not on the node.
func (m *Mounts) RemovePartial(attachment types.UID, persistentVolume, directory string) error {
	if !filepath.IsLocal(directory) || directory == "." || strings.HasSuffix(directory, "/") {
		return fmt.Errorf("%w: %q is not a relative directory", ErrUnsafePath, directory)
	}
	claim, err := m.claim(attachment, persistentVolume)
	if err != nil {
		return err
	}
	defer claim.Close() //nolint:errcheck // a handle
	root, err := os.OpenRoot(procPath(claim))
	if err != nil {
		return fmt.Errorf("open volume %s: %w", persistentVolume, err)
	}
	defer root.Close() //nolint:errcheck // a handle
	partial := directory + layout.PartialSuffix
	if err := root.RemoveAll(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s from volume %s: %w", partial, persistentVolume, err)
	}
	return nil
}
