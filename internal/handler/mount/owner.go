package mount

import (
	"errors"
	"fmt"
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
