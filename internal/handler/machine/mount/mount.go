package mount

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/varvebackup/varve/internal/layout"
)

// coverSource marks, in the mount table, the tmpfs that covers a utility directory.
const coverSource = "varve-utility"

// coverOptions limit what a launcher that is root can store in the cover, which only holds empty directories.
const coverOptions = "size=64k,nr_inodes=600,mode=0755"

// ErrBusy says that the launcher still uses the volume; try again later.
var ErrBusy = errors.New("the volume is in use")

// ErrNotAttached says that the claim is not mounted on this node for the attachment pod.
var ErrNotAttached = errors.New("the claim is not mounted on this node")

// Mounts works below one kubelet's pods directory.
type Mounts struct {
	root    *os.File
	podsDir string
	// gate stands before every call that can reach a target's storage.
	gate *gate
}

// Open opens the pods directory, which must be an absolute path. Everything later happens below the directory that
// was there at this moment. Close releases it.
func Open(podsDir string) (*Mounts, error) {
	if !filepath.IsAbs(podsDir) {
		return nil, fmt.Errorf("pods directory %q: must be absolute", podsDir)
	}
	// The mount table has real paths.
	real, err := filepath.EvalSymlinks(podsDir)
	if err != nil {
		return nil, fmt.Errorf("pods directory: %w", err)
	}
	root, err := os.OpenFile(real, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("pods directory: %w", err)
	}
	return &Mounts{root: root, podsDir: real, gate: newGate(patience)}, nil
}

// Close releases the pods directory. Mounts stay.
func (m *Mounts) Close() error { return m.root.Close() }

func (m *Mounts) utilityDir(launcher types.UID) (*os.File, error) {
	rel, err := joinBelow(launcher, strings.TrimPrefix(layout.NodeUtilityDir("", launcher), string(launcher)))
	if err != nil {
		return nil, err
	}
	dir, err := openDir(m.root, rel)
	if err != nil {
		return nil, fmt.Errorf("utility directory of pod %s: %w", launcher, err)
	}
	return dir, nil
}

// Cover makes sure that the launcher's utility directory is a tmpfs, so that the kubelet cannot delete what is
// mounted below it when the pod ends (see the package comment). The caller must get an answer from the launcher
// after Cover and before [Mounts.Attach]. That proves that the kubelet had not begun to remove the directory before
// it was covered.
func (m *Mounts) Cover(launcher types.UID) error {
	dir, err := m.utilityDir(launcher)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a handle
	covered, err := isTmpfsMount(dir)
	if err != nil || covered {
		return err
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount(coverSource, procPath(dir), "tmpfs", flags, coverOptions); err != nil {
		return fmt.Errorf("cover the utility directory of pod %s: %w", launcher, err)
	}
	return nil
}

// Attach mounts the machine's directory of a claim, as its attachment pod has the claim on this node, at
// utility/<name>/<machine> of the launcher pod. It creates the directory if it does not exist, and lets the launcher's
// user write to it. With an empty machine it mounts the whole claim, at utility/<name>.
//
// Attach is idempotent. [Mounts.Cover] must have been called. Attach returns ErrNotAttached if the kubelet has not
// mounted the claim, or no longer has it mounted, and ErrUnsafePath if somebody put something else in the place of the
// mount point or of the machine's directory. It returns ErrNotResponding if the claim's storage does not answer.
func (m *Mounts) Attach(launcher types.UID, name string, from Source, machine string) error {
	if err := checkElement(name); err != nil {
		return err
	}
	if machine != "" {
		if err := checkElement(machine); err != nil {
			return err
		}
	}
	err := m.gate.run(from.Volume, func(call *gateCall) error { return m.attach(call, launcher, name, from, machine) })
	if errors.Is(err, ErrNotResponding) {
		return fmt.Errorf("%s: %w", from, err)
	}
	return err
}

func (m *Mounts) attach(call *gateCall, launcher types.UID, name string, from Source, machine string) error {
	source, err := m.openClaim(from)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // a handle
	dir, err := m.utilityDir(launcher)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a handle
	if covered, err := isTmpfsMount(dir); err != nil || !covered {
		return errors.Join(err, fmt.Errorf("utility directory of pod %s is not covered", launcher))
	}
	target, err := makeMountPoint(dir, name)
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // a handle
	mounted, same, err := compareMounts(target, source)
	switch {
	case err != nil:
		return err
	case same:
		return nil // also if an earlier version has mounted the whole claim
	case mounted:
		return errOtherMounted(name)
	case !call.mayProceed():
		return ErrNotResponding // nobody may want the volume there any more
	case machine == "":
		return cloneMount(source, target, name)
	}
	return attachMachine(call, source, target, machine)
}

// attachMachine mounts the machine's directory of the claim below the directory target of the cover.
func attachMachine(call *gateCall, claim, target *os.File, machine string) error {
	source, err := openMachineDirectory(claim, machine)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // a handle
	point, err := makeMountPoint(target, machine)
	if err != nil {
		return err
	}
	defer point.Close() //nolint:errcheck // a handle
	mounted, same, err := compareMounts(point, source)
	switch {
	case err != nil:
		return err
	case same:
		return nil
	case mounted:
		return errOtherMounted(machine)
	case !call.mayProceed():
		return ErrNotResponding
	}
	return cloneMount(source, point, machine)
}

func errOtherMounted(name string) error {
	return fmt.Errorf("mount point %s: %w: another volume is mounted there", name, ErrBusy)
}

// makeMountPoint opens the directory name in dir, and creates it if it does not exist.
func makeMountPoint(dir *os.File, name string) (*os.File, error) {
	if err := unix.Mkdirat(fdOf(dir), name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make the mount point %s: %w", name, err)
	}
	point, err := openDir(dir, name)
	if errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("%w: %w", ErrUnsafePath, err)
	}
	if err != nil {
		return nil, fmt.Errorf("mount point %s: %w", name, err)
	}
	return point, nil
}

// cloneMount mounts source over target. It sets the flags before the mount becomes visible anywhere.
func cloneMount(source, target *os.File, name string) error {
	tree, err := unix.OpenTree(fdOf(source), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("clone the mount for %s: %w", name, err)
	}
	defer unix.Close(tree) //nolint:errcheck // a handle
	attr := unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
		// Leave the source's peer group: what is mounted below the claim later must not appear in the launcher.
		Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("restrict the mount for %s: %w", name, err)
	}
	if err := unix.MoveMount(tree, "", fdOf(target), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount at %s: %w", name, err)
	}
	return nil
}

// Attached reports whether anything is mounted at utility/<name> of the launcher pod.
func (m *Mounts) Attached(launcher types.UID, name string) (bool, error) {
	names, err := m.Names(launcher)
	return slices.Contains(names, name), err
}

// Detach unmounts utility/<name> of the launcher pod and removes the mount point. It is idempotent. A pod that is
// gone has nothing mounted. Detach returns ErrBusy if the launcher uses the volume. With lazy, the mount disappears
// at once and is released when its last user is done. Detach returns ErrNotResponding if the volume's storage does
// not answer.
func (m *Mounts) Detach(launcher types.UID, name string, lazy bool) error {
	if err := checkElement(name); err != nil {
		return err
	}
	// The name of a persistent volume has no slash.
	err := m.gate.run(string(launcher)+"/"+name, func(*gateCall) error { return m.detach(launcher, name, lazy) })
	if errors.Is(err, ErrNotResponding) {
		return fmt.Errorf("unmount %s: %w", name, err)
	}
	return err
}

func (m *Mounts) detach(launcher types.UID, name string, lazy bool) error {
	dir, err := m.utilityDir(launcher)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // a handle
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	if err := detachMachine(dir, name, flags); err != nil {
		return err
	}
	return unmountAt(dir, name, flags)
}

// detachMachine unmounts the directory of a machine that is mounted below the mount point name, if there is one.
func detachMachine(dir *os.File, name string, flags int) error {
	point, err := openDir(dir, name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, ErrUnsafePath) {
		return nil // there is no directory to mount anything below
	}
	if err != nil {
		return fmt.Errorf("mount point %s: %w", name, err)
	}
	defer point.Close() //nolint:errcheck // a handle
	if whole, err := isMountRoot(point); err != nil || whole {
		return err // what is below is the claim's
	}
	entries, err := os.ReadDir(procPath(point)) // the cover holds only a few
	if err != nil {
		return fmt.Errorf("mount point %s: %w", name, err)
	}
	for _, entry := range entries {
		if err := unmountAt(point, entry.Name(), flags); err != nil {
			return err
		}
	}
	return nil
}

// unmountAt unmounts everything that is mounted at the name in dir and removes the mount point.
func unmountAt(dir *os.File, name string, flags int) error {
	// The last element is not followed and the rest is a handle, so only what is mounted at this name can be
	// unmounted.
	for {
		err := unix.Unmount(path.Join(procPath(dir), name), flags)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not a mount point, or not there
		}
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("unmount %s: %w", name, ErrBusy)
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", name, err)
		}
	}
	return removeMountPoint(dir, name)
}

// removeMountPoint removes an empty directory. If the launcher has filled it, or replaced it by something else, it
// stays and goes with the pod.
func removeMountPoint(dir *os.File, name string) error {
	err := unix.Unlinkat(fdOf(dir), name, unix.AT_REMOVEDIR)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("remove the mount point %s: %w", name, ErrBusy)
	}
	return fmt.Errorf("remove the mount point %s: %w", name, err)
}

// Uncover removes the tmpfs that Cover made, if nothing is mounted below it any more. It leaves any other tmpfs,
// such as that of an emptyDir with medium Memory.
func (m *Mounts) Uncover(launcher types.UID) error {
	points, err := Table()
	if err != nil {
		return err
	}
	at := layout.NodeUtilityDir(m.podsDir, launcher)
	ours := slices.ContainsFunc(points, func(p Point) bool { return p.Path == at && p.Source == coverSource })
	if !ours {
		return nil
	}
	// The parent is the kubelet's own directory: no launcher can write there.
	rel, err := joinBelow(launcher, strings.TrimPrefix(path.Dir(at), path.Join(m.podsDir, string(launcher))))
	if err != nil {
		return err
	}
	parent, err := openDir(m.root, rel)
	if err != nil {
		return fmt.Errorf("uncover the utility directory of pod %s: %w", launcher, err)
	}
	defer parent.Close() //nolint:errcheck // a handle
	err = unix.Unmount(path.Join(procPath(parent), path.Base(at)), unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		if errors.Is(err, unix.EBUSY) {
			err = ErrBusy
		}
		return fmt.Errorf("uncover the utility directory of pod %s: %w", launcher, err)
	}
	return nil
}

// Names returns the names at which something is mounted below the launcher pod's utility directory.
func (m *Mounts) Names(launcher types.UID) ([]string, error) {
	all, err := m.All()
	return all[launcher], err
}

// All returns what is mounted below every launcher pod's utility directory. A pod whose directory is covered and
// empty has an entry without names.
func (m *Mounts) All() (map[types.UID][]string, error) {
	points, err := Table()
	if err != nil {
		return nil, err
	}
	found := map[types.UID][]string{}
	for _, p := range points {
		rel, ok := strings.CutPrefix(p.Path, m.podsDir+"/")
		if !ok {
			continue
		}
		pod, _, _ := strings.Cut(rel, "/")
		base := layout.NodeUtilityDir(m.podsDir, types.UID(pod))
		if p.Path == base && p.Source == coverSource {
			found[types.UID(pod)] = append([]string{}, found[types.UID(pod)]...)
			continue
		}
		below, ok := strings.CutPrefix(p.Path, base+"/")
		name, machine, _ := strings.Cut(below, "/")
		if ok && !strings.Contains(machine, "/") && !slices.Contains(found[types.UID(pod)], name) {
			found[types.UID(pod)] = append(found[types.UID(pod)], name)
		}
	}
	return found, nil
}
