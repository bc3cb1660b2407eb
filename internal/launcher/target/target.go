// Package target is the launcher's view of the volume that a backup goes to: the backup's directory in it, and the
// machine's other backups.
//
// Of the volume, the launcher sees no more than the directory of its machine: that is mounted at the directory's name
// below the volume's path. Handlers of earlier versions mount the whole volume at its path.
//
// All access goes through an open directory (os.Root). No symbolic link on the volume, which belongs to the user,
// leads out of it, and if the mount vanishes, nothing is ever written into the container's own file system in its place.
package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/manifest"
)

// ErrInvalid is wrapped by errors that say that the volume cannot take a backup.
var ErrInvalid = errors.New("target volume cannot be used")

// Volume is an open target volume. It serves one backup. Its methods are for one goroutine at a time, except Seal,
// FreeBytes, Discard and Close. Each may take for ever if the storage does not answer (WaitFor).
type Volume struct {
	// Before, if set, is called before FreeBytes ("free"), each removal of Discard ("remove") and Probe.Write ("probe"). With it
	// tests play storage that fails or does not answer.
	Before func(access string) error

	path string
	root *os.Root
	// mounted is the directory below path that is mounted: a machine's, or "." if it is the whole volume.
	mounted string
}

func (v *Volume) before(access string) error {
	if v.Before == nil {
		return nil
	}
	return v.Before(access)
}

// releasePatience is how long the removal of a backup's files may take. To unlink a large file takes a while.
const releasePatience = 30 * time.Second

// MountInfo is where the kernel lists the mounts of this process.
const MountInfo = "/proc/self/mountinfo"

// Open opens the volume of which a machine's directory is mounted below dir, an absolute path, according to the file
// mountInfo (MountInfo), or the whole of which is mounted at dir.
// ErrInvalid: nothing is mounted there, or it is mounted read-only.
func Open(dir, mountInfo string) (*Volume, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	v := &Volume{path: dir, root: root}
	if err := v.checkMount(mountInfo); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return v, nil
}

// checkMount checks what is already open, so that nothing can change between the check and the use.
func (v *Volume) checkMount(mountInfo string) error {
	info, err := os.Open(mountInfo)
	if err != nil {
		return fmt.Errorf("check target volume: %w", err)
	}
	defer func() { _ = info.Close() }() // only read
	m, ok, err := findMount(info, filepath.Clean(v.path))
	switch {
	case err != nil:
		return fmt.Errorf("check target volume: %w", err)
	case !ok:
		return fmt.Errorf("%w: nothing is mounted at %s", ErrInvalid, v.path)
	case m.readOnly:
		return fmt.Errorf("%w: the volume is mounted read-only", ErrInvalid)
	}
	v.mounted, err = filepath.Rel(v.path, m.point)
	if err != nil {
		return fmt.Errorf("check target volume: %w", err)
	}
	same, err := v.stillMounted()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if !same {
		return fmt.Errorf("%w: the mount at %s changed while it was opened", ErrInvalid, v.path)
	}
	return nil
}

// stillMounted says whether the path still leads to the open directory.
func (v *Volume) stillMounted() (bool, error) {
	opened, err := v.root.Stat(v.mounted)
	if err != nil {
		return false, err
	}
	now, err := os.Stat(filepath.Join(v.path, v.mounted))
	if err != nil {
		return false, err
	}
	return os.SameFile(opened, now), nil
}

// Close releases the volume, so that it can be unmounted.
func (v *Volume) Close() error { return v.root.Close() }

// FreeBytes returns how many bytes can be written to the volume.
func (v *Volume) FreeBytes() (uint64, error) {
	if err := v.before("free"); err != nil {
		return 0, fmt.Errorf("free space of target volume: %w", err)
	}
	d, err := v.root.Open(v.mounted)
	if err != nil {
		return 0, fmt.Errorf("free space of target volume: %w", err)
	}
	defer func() { _ = d.Close() }() // only read
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &st); err != nil {
		return 0, fmt.Errorf("free space of target volume: %w", err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// Path returns the absolute path of a file on the volume, for other processes.
func (v *Volume) Path(name string) string { return filepath.Join(v.path, filepath.FromSlash(name)) }

// Root gives access to the volume's files.
func (v *Volume) Root() *os.Root { return v.root }

// Begin creates the partial directory of a backup: <directory>.partial. It first removes what an earlier attempt of
// the same backup left under either name. ErrInvalid: directory is not a relative path on the volume, or holds another backup.
func (v *Volume) Begin(directory, backupUID string) error {
	if !fs.ValidPath(directory) || directory == "." {
		return fmt.Errorf("%w: %q is not a directory on the volume", ErrInvalid, directory)
	}
	if !v.isVisible(directory) {
		return fmt.Errorf("%w: of the volume only the directory %s is mounted, and %s is not in it", ErrInvalid, v.mounted, directory)
	}
	if err := v.holdsNoOther(directory, backupUID); err != nil {
		return err
	}
	for _, name := range []string{directory, partialName(directory)} {
		if err := v.root.RemoveAll(name); err != nil {
			return v.writeError("remove what an earlier attempt left", err)
		}
	}
	if err := v.root.MkdirAll(partialName(directory), 0o755); err != nil {
		return v.writeError("create directory", err)
	}
	return nil
}

// isVisible says whether the launcher sees the directory's place: below a machine's directory nothing else is mounted.
func (v *Volume) isVisible(directory string) bool {
	first, _, nested := strings.Cut(directory, "/")
	return v.mounted == "." || (nested && first == v.mounted)
}

// holdsNoOther returns an error if the directory holds, or may hold, another backup.
func (v *Volume) holdsNoOther(directory, backupUID string) error {
	if _, err := v.root.Lstat(directory); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	m, _, err := v.Manifest(directory)
	switch {
	case err != nil: // what cannot be read may be a backup
		return fmt.Errorf("%w: %s already exists: %w", ErrInvalid, directory, err)
	case m.Backup.UID != backupUID:
		return fmt.Errorf("%w: %s holds the backup %s with UID %s", ErrInvalid, directory, m.Backup.Name, m.Backup.UID)
	}
	return nil
}

// writeError wraps ErrInvalid if the volume itself refuses writes.
func (v *Volume) writeError(what string, err error) error {
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %s: %w", ErrInvalid, what, err)
	}
	return fmt.Errorf("target volume: %s: %w", what, err)
}

// Commit writes the manifest into the partial directory, renames the directory to its final name, and returns the
// manifest's SHA-256 in lower case hex. All files in it must already be durable. After an error the directory is still partial.
func (v *Volume) Commit(directory string, m manifest.Manifest) (string, error) {
	data, err := manifest.Encode(m)
	if err != nil {
		return "", err
	}
	if err := v.writeDurably(path.Join(partialName(directory), layout.BackupManifest), data); err != nil {
		return "", v.writeError("write manifest", err)
	}
	if err := v.syncDir(partialName(directory)); err != nil {
		return "", v.writeError("sync directory", err)
	}
	if err := v.root.Rename(partialName(directory), directory); err != nil {
		return "", v.writeError("rename directory", err)
	}
	if err := v.syncUpwards(directory); err != nil {
		// A backup that failed must not look complete.
		return "", v.writeError("sync directory", errors.Join(err, v.root.Rename(directory, partialName(directory))))
	}
	return sha256Hex(data), nil
}

// syncUpwards makes the directory's name durable. The parents up to what is mounted may be new as well.
func (v *Volume) syncUpwards(directory string) error {
	for dir := path.Dir(directory); ; dir = path.Dir(dir) {
		if err := v.syncDir(dir); err != nil || dir == v.mounted || dir == "." {
			return err
		}
	}
}

// Discard removes a backup's partial directory and, if it is then empty, the machine's directory. A machine's directory
// that is mounted stays. Discard stops when ctx ends. What
// is under way then and succeeds later removes no file of a new directory with the same name.
func (v *Volume) Discard(ctx context.Context, directory string) error {
	if err := v.removePartial(ctx, partialName(directory)); err != nil {
		return v.writeError("remove directory", err)
	}
	if parent := path.Dir(directory); parent != "." && parent != v.mounted && ctx.Err() == nil {
		_ = v.root.Remove(parent) // fails while other backups are in it, as it should
	}
	return nil
}

// removePartial removes entry by entry, from the open directory.
func (v *Volume) removePartial(ctx context.Context, name string) error {
	if err := v.before("remove"); err != nil {
		return err
	}
	named, err := v.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !named.IsDir() {
		return v.root.Remove(name)
	}
	dir, err := v.root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // only entries are changed
	if opened, err := dir.Stat("."); err != nil || !os.SameFile(named, opened) {
		return errors.Join(fmt.Errorf("%s changes while it is removed", name), err)
	}
	for {
		names, err := firstNames(dir)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			break
		}
		for _, entry := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := errors.Join(v.before("remove"), dir.RemoveAll(entry)); err != nil {
				return err
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(v.before("remove"), v.root.Remove(name))
}

// firstNames returns some of the names in a directory, or none if it is empty.
func firstNames(dir *os.Root) ([]string, error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(256)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, errors.Join(err, d.Close())
}

// Release ends the use of a volume after a backup that failed or leaves nothing there: it removes the partial directory,
// unless directory is empty, and closes the volume. It waits a bounded time for the storage. What is left then is named in
// the error.
func (v *Volume) Release(directory string) error {
	err := WaitFor(releasePatience, func(ctx context.Context) error {
		var err error
		if directory != "" {
			err = v.Discard(ctx, directory)
		}
		return errors.Join(err, v.Close())
	})
	if errors.Is(err, ErrNotResponding) && directory != "" {
		err = fmt.Errorf("%w: files may be left in %s", err, partialName(directory))
	}
	return err
}

func partialName(directory string) string { return directory + layout.PartialSuffix }

// PartialFile returns the path of a volume's file while the backup runs, relative to the root.
func PartialFile(directory, volume string) string {
	return layout.BackupFile(partialName(directory), volume)
}

func (v *Volume) writeDurably(name string, data []byte) error {
	f, err := v.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func (v *Volume) syncDir(name string) error {
	d, err := v.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
