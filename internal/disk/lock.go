package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// QEMU locks single bytes of an image to say what it does with it (block/file-posix.c, RAW_LOCK_PERM_BASE and
// RAW_LOCK_SHARED_BASE): byte 100+p that it uses permission p, byte 200+p that it lets nobody else use it. All locks are read locks of the open
// file description; who wants to know whether anybody has one asks for a write lock.
const (
	lockUsed    = 100
	lockDenied  = 200
	permissions = 4 // consistent read, write, unchanged write, resize
)

// lock says to QEMU, and to others that restore, that f is written by us alone, and refuses it if somebody else uses it.
func lock(f *os.File) error {
	for p := range int64(permissions) {
		for _, at := range []int64{lockUsed + p, lockDenied + p} {
			l := unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1}
			err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l)
			if unlockable(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("lock %s: %w", f.Name(), os.NewSyscallError("fcntl", err))
			}
		}
	}
	for p := range int64(permissions) {
		for _, at := range []int64{lockUsed + p, lockDenied + p} {
			l := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
			if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
				return fmt.Errorf("lock %s: %w", f.Name(), os.NewSyscallError("fcntl", err))
			}
			if l.Type != unix.F_UNLCK {
				return errorf(ErrConflict, "target %s is in use by a virtual machine, or another restore writes it: stop that first", f.Name())
			}
		}
	}
	return nil
}

// share says to restores that f is read, and refuses it if somebody lets nobody read it: a restore writes it at this moment. A virtual
// machine lets others read, and is not hindered.
func share(f *os.File) error {
	used := unix.Flock_t{Type: unix.F_RDLCK, Start: lockUsed, Len: 1}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &used)
	if unlockable(err) {
		return nil
	}
	denied := unix.Flock_t{Type: unix.F_WRLCK, Start: lockDenied, Len: 1}
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &denied)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), os.NewSyscallError("fcntl", err))
	}
	if denied.Type != unix.F_UNLCK {
		return errorf(ErrConflict, "disk %s is the target of a restore that runs: wait until it has ended", f.Name())
	}
	return nil
}

// unlock gives up the locks at once. Closing f is not enough: a child that this process is starting has it open until it runs.
func unlock(f *os.File) {
	l := unix.Flock_t{Type: unix.F_UNLCK, Start: lockUsed, Len: lockDenied + permissions - lockUsed}
	_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l) // The file is closed next.
}

// unlockable says that the file system has no locks, or its lock server none to give.
func unlockable(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}
