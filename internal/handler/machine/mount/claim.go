package mount

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

// PluginCSI is the directory for volumes that CSI drivers mount.
const PluginCSI = "kubernetes.io~csi"

// Source is the volume of a claim as the kubelet mounted it for a pod.
type Source struct {
	// Pod is the UID of the pod that the volume is mounted for.
	Pod types.UID
	// Plugin is the directory of the volume's plugin, such as PluginCSI. The kubelet has a directory for each
	// plugin, so a volume of another kind with the same name, such as an emptyDir, is in another directory.
	Plugin string
	// Volume is the name of the persistent volume.
	Volume string
}

// String describes the source for people.
func (s Source) String() string { return fmt.Sprintf("volume %s of pod %s", s.Volume, s.Pod) }

// openClaim opens the root of a persistent volume as the kubelet mounted it for a pod:
//
//	<pods>/<pod>/volumes/<plugin>/<persistent volume>[/mount]
//
// The last level exists only for CSI. The directory must be a mount point. One that merely exists is left from
// before the kubelet mounted the volume or after it unmounted it, and a backup written there would fill the node's
// own disk.
func (m *Mounts) openClaim(s Source) (*os.File, error) {
	for what, name := range map[string]string{"plugin": s.Plugin, "persistent volume": s.Volume} {
		if err := checkElement(name); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	rel, err := joinBelow(s.Pod, "volumes", s.Plugin, s.Volume)
	if err != nil {
		return nil, err
	}
	if s.Plugin == PluginCSI {
		rel = path.Join(rel, "mount")
	}
	dir, err := openDir(m.root, rel)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%s: %w", s, ErrNotAttached)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}
	mounted, err := isMountRoot(dir)
	if err == nil && mounted {
		return dir, nil
	}
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}
	return nil, fmt.Errorf("%s: %w", s, ErrNotAttached)
}

// RemovePartial deletes a backup's unfinished directory from a claim that its attachment pod holds, whether or not
// the launcher is alive. directory is relative to the claim's root, without [layout.PartialSuffix]. Links in it are
// removed, not followed. It is no error if the directory does not exist. RemovePartial returns ErrNotAttached if
// the claim is not on the node, ErrUnfinished if it has removed a good part and there is more, and ErrNotResponding
// if the claim's storage does not answer.
func (m *Mounts) RemovePartial(source Source, directory string) error {
	if !filepath.IsLocal(directory) || directory == "." || strings.HasSuffix(directory, "/") {
		return fmt.Errorf("%w: %q is not a relative directory", ErrUnsafePath, directory)
	}
	partial := directory + layout.PartialSuffix
	err := m.gate.run(source.Volume, func(call *gateCall) error { return m.removePartial(call, source, partial) })
	if err != nil && !errors.Is(err, ErrNotAttached) {
		return fmt.Errorf("remove %s from %s: %w", partial, source, err)
	}
	return err
}

func (m *Mounts) removePartial(call *gateCall, source Source, partial string) error {
	claim, err := m.openClaim(source)
	if err != nil {
		return err
	}
	defer claim.Close() //nolint:errcheck // a handle
	parent, err := openDir(claim, path.Dir(partial))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close() //nolint:errcheck // a handle
	if !call.mayProceed() {
		return ErrNotResponding
	}
	return removeTree(parent, path.Base(partial), maxSteps)
}
