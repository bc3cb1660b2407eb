package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/layout"
)

// openMachineDirectory opens a machine's directory at the root of a target claim for a launcher. It creates the
// directory if it does not exist, and lets the launcher's user write to it.
func openMachineDirectory(claim *os.File, machine string) (*os.File, error) {
	if err := makeMachineDirectory(claim, machine); err != nil {
		return nil, fmt.Errorf("make the directory %s on the claim: %w", machine, err)
	}
	dir, err := openDir(claim, machine)
	if errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("%w: %w", ErrUnsafePath, err)
	}
	if err != nil {
		return nil, fmt.Errorf("directory of machine %s: %w", machine, err)
	}
	if err := admitLauncher(dir, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("directory %s on the claim is not writable for the launcher, which runs as user %d: give it to this user or group: %w",
			machine, layout.LauncherUser, err), dir.Close())
	}
	return dir, nil
}

// makeMachineDirectory creates the directory as the launcher's user if this user may, because an NFS server that maps
// root to nobody does not let root give anything away. Otherwise it creates the directory as root.
func makeMachineDirectory(claim *os.File, machine string) error {
	err := asLauncher(func() error { return unix.Mkdirat(fdOf(claim), machine, 0o755) })
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		err = unix.Mkdirat(fdOf(claim), machine, 0o755)
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil
	case err != nil:
		return err
	}
	// The launcher cannot make the name durable: it does not see the claim's root.
	return durable.Sync(procPath(claim))
}

// asLauncher runs f with the launcher's user and group as those of accesses to files.
func asLauncher(f func() error) error {
	runtime.LockOSThread() // they are the thread's
	if err := errors.Join(unix.Setfsgid(layout.LauncherGroup), unix.Setfsuid(layout.LauncherUser)); err != nil {
		return err // the thread ends with its goroutine
	}
	err := f()
	if err := errors.Join(unix.Setfsuid(os.Geteuid()), unix.Setfsgid(os.Getegid())); err != nil {
		return err
	}
	runtime.UnlockOSThread()
	return err
}

// admitLauncher lets the launcher's user read and write what is at rel in dir, or dir itself if rel is empty, as the
// kubelet does for a pod's fsGroup: through the group. It changes nothing if the user has access already, and
// neither changes the owner nor follows a link.
func admitLauncher(dir *os.File, rel string) error {
	f := dir
	if rel != "" {
		var err error
		if f, err = openBelow(fdOf(dir), rel, 0); err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // a handle
	}
	var st unix.Stat_t
	if err := unix.Fstat(fdOf(f), &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	need := uint32(0o6)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		need = 0o7
	case unix.S_IFREG:
	default:
		return nil
	}
	switch {
	case st.Uid == layout.LauncherUser:
		return changeMode(f, st.Mode, need<<6)
	case st.Gid == layout.LauncherGroup:
		return changeMode(f, st.Mode, need<<3)
	case st.Mode&need == need:
		return nil
	}
	if err := unix.Fchownat(fdOf(f), "", -1, layout.LauncherGroup, unix.AT_EMPTY_PATH); err != nil {
		return os.NewSyscallError("fchownat", err)
	}
	return changeMode(f, st.Mode, need<<3)
}

func changeMode(f *os.File, mode, need uint32) error {
	if mode&need == need {
		return nil
	}
	// A handle that was opened for its path alone has no other way. It leads to the file itself.
	return os.NewSyscallError("chmod", unix.Chmod(procPath(f), mode&0o1777|need))
}

const (
	// admitEntries is how many entries of one directory admitTree looks at.
	admitEntries = 1000
	// admitDepth is how deep below a claim's root the files of a launcher are.
	admitDepth = 2
)

// Admit lets the launcher's user read and write a claim of its own pod: what is at its root, and in the directories
// there. The kubelet does the same with fsGroup, but not for all volumes, such as those on NFS. What cannot be changed
// stays as it is: the launcher may have access all the same, and otherwise says what it cannot open.
func (m *Mounts) Admit(from Source) error {
	err := m.gate.run(from.Volume, func(call *gateCall) error {
		claim, err := m.openClaim(from)
		if err != nil {
			return err
		}
		defer claim.Close() //nolint:errcheck // a handle
		return admitTree(call, claim, admitDepth)
	})
	if err != nil && !errors.Is(err, ErrNotAttached) {
		return fmt.Errorf("let the launcher use %s: %w", from, err)
	}
	return err
}

// admitTree admits the launcher's user to a directory and to what is in it down to this depth.
func admitTree(call *gateCall, dir *os.File, depth int) error {
	if !call.mayProceed() {
		return ErrNotResponding
	}
	if err := admitLauncher(dir, ""); err != nil && !isRefused(err) {
		return err
	}
	list, err := os.Open(procPath(dir))
	if err != nil {
		return err
	}
	defer list.Close() //nolint:errcheck // opened for reading
	entries, err := list.ReadDir(admitEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, entry := range entries {
		err := admitEntry(call, dir, entry, depth-1)
		if err != nil && !isRefused(err) {
			return err
		}
	}
	return nil
}

func admitEntry(call *gateCall, dir *os.File, entry os.DirEntry, depth int) error {
	if !entry.IsDir() {
		return admitLauncher(dir, entry.Name())
	}
	if depth == 0 {
		return nil
	}
	sub, err := openDir(dir, entry.Name())
	if err != nil {
		return err
	}
	defer sub.Close() //nolint:errcheck // a handle
	return admitTree(call, sub, depth)
}

// isRefused says whether a claim's storage, or what is on the claim, keeps root from changing it.
func isRefused(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) || errors.Is(err, os.ErrNotExist) ||
		errors.Is(err, ErrUnsafePath) || errors.Is(err, unix.ENOTDIR)
}
