package mount

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A launcher fills the directories that are removed here, so their depth and their size are the launcher's choice. What
// limits a removal does not depend on them.
const (
	// maxDepth is how many directories are open at a time. What lies deeper is moved up first.
	maxDepth = 16
	// readBatch is how many names of a directory are in memory at a time.
	readBatch = 128
	// maxSteps is how many entries one call removes or moves. On a storage that takes a millisecond for each, this is
	// far below the patience of a gate.
	maxSteps = 2000
	// maxMoveNames is how many names are tried for a directory that is moved up.
	maxMoveNames = 8
)

// ErrUnfinished says that there is more to remove: call again.
var ErrUnfinished = errors.New("there is more to remove")

// treeRemoval is one call that removes from the tree below top.
type treeRemoval struct {
	top *os.File
	// steps is how many entries may still be removed or moved.
	steps int
}

// removeTree removes name from the directory parent, with everything below it. It follows no symbolic link and enters no
// other mount. It returns ErrUnfinished if steps were not enough. No error if there is no such name.
func removeTree(parent *os.File, name string, steps int) error {
	done, err := removeNonDirectory(parent, name)
	if err != nil || done {
		return err
	}
	top, err := openTree(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer top.Close() //nolint:errcheck // opened for reading
	r := &treeRemoval{top: top, steps: steps}
	if err := r.emptyDirectory(top, 1); err != nil {
		return err
	}
	return removeDirectory(parent, name)
}

// emptyDirectory removes what is in dir, the depth-th open directory. It ends after a pass that has found nothing.
func (r *treeRemoval) emptyDirectory(dir *os.File, depth int) error {
	for {
		found := false
		for {
			names, err := dir.Readdirnames(readBatch)
			for _, name := range names {
				found = true
				if err := r.removeEntry(dir, name, depth); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		if !found {
			return nil
		}
		// Some file systems skip entries that follow a removed one.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

func (r *treeRemoval) removeEntry(dir *os.File, name string, depth int) error {
	if r.steps == 0 {
		return ErrUnfinished
	}
	r.steps--
	done, err := removeNonDirectory(dir, name)
	if err != nil || done {
		return err
	}
	err = removeDirectory(dir, name)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if depth == maxDepth {
		return r.moveUp(dir, name)
	}
	child, err := openTree(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer child.Close() //nolint:errcheck // opened for reading
	if err := r.emptyDirectory(child, depth+1); err != nil {
		return err
	}
	return removeDirectory(dir, name)
}

// moveUp makes a directory an entry of the tree's root, where a later pass removes it. It is named after its inode, so
// that directories do not take each other's names.
func (r *treeRemoval) moveUp(dir *os.File, name string) error {
	var s unix.Stat_t
	err := unix.Fstatat(fdOf(dir), name, &s, unix.AT_SYMLINK_NOFOLLOW)
	for i := 0; err == nil && i < maxMoveNames; i++ {
		err = unix.Renameat(fdOf(dir), name, fdOf(r.top), fmt.Sprintf(".removing-%x-%d", s.Ino, i))
		if err == nil {
			return nil
		}
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) {
			err = nil // the launcher has taken the name: try the next one
		}
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &os.PathError{Op: "move up", Path: name, Err: err}
	}
	return &os.PathError{Op: "move up", Path: name, Err: unix.EEXIST}
}

// removeNonDirectory removes an entry that is no directory. done is false if it is one.
func removeNonDirectory(dir *os.File, name string) (done bool, err error) {
	err = unix.Unlinkat(fdOf(dir), name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.EISDIR):
		return false, nil
	}
	return false, &os.PathError{Op: "unlink", Path: name, Err: err}
}

// removeDirectory removes an empty directory.
func removeDirectory(dir *os.File, name string) error {
	err := unix.Unlinkat(fdOf(dir), name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &os.PathError{Op: "rmdir", Path: name, Err: err}
}

// openTree opens a directory to read its entries. Unlike openDir, it does not enter another mount.
func openTree(dir *os.File, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	return openHow(fdOf(dir), name, &how)
}
