package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// QEMU locks single bytes of an image to announce what it does with it (block/file-posix.c, RAW_LOCK_PERM_BASE and
// RAW_LOCK_SHARED_BASE): byte 100+p says that it uses permission p, byte 200+p that it lets nobody else use it. All
// locks are read locks of the open file description. To find out whether anybody holds one, query for a write lock.
const (
	lockUsed    = 100
	lockDenied  = 200
	permissions = 4 // consistent read, write, unchanged write, resize
)

// The permissions, as offsets to lockUsed and lockDenied.
const (
	reading  = 0
	writing  = 1
	resizing = 3
)

// lockForWriting announces to QEMU, and to other restores, that only this process writes f. It refuses f if something else uses
// it.
func lockForWriting(f *os.File) error {
	for p := range int64(permissions) {
		for _, at := range []int64{lockUsed + p, lockDenied + p} {
			if has, err := takeLock(f, at); err != nil || !has {
				return err
			}
		}
	}
	return checkUnused(f)
}

// checkUnused refuses f as a target if something else uses it.
func checkUnused(f *os.File) error {
	for p := range int64(permissions) {
		for _, at := range []int64{lockUsed + p, lockDenied + p} {
			locked, err := lockedByOthers(f, at)
			if err != nil {
				return err
			}
			if locked {
				return errclass.Errorf(errclass.Conflict, "target %s is in use by a virtual machine, or another restore writes it: stop that first", f.Name())
			}
		}
	}
	return nil
}

// lockToRead announces to QEMU, and to restores, that f is read and must not change. It refuses f if something writes
// it. With ignoreWriters, it does not forbid changes and does not look for virtual machines that write f.
func lockToRead(f *os.File, ignoreWriters bool) error {
	take := []int64{lockUsed + reading, lockDenied + writing, lockDenied + resizing}
	if ignoreWriters {
		take = take[:1]
	}
	for _, at := range take {
		if has, err := takeLock(f, at); err != nil || !has {
			return err
		}
	}
	// A restore lets nobody else read what it writes. A virtual machine does.
	locked, err := lockedByOthers(f, lockDenied+reading)
	if err != nil {
		return err
	}
	if locked {
		return errclass.Errorf(errclass.Conflict, "disk %s is the target of a restore that runs: wait until it has ended", f.Name())
	}
	if ignoreWriters {
		return nil
	}
	for _, at := range []int64{lockUsed + writing, lockUsed + resizing} {
		if locked, err = lockedByOthers(f, at); err != nil {
			return err
		}
		if locked {
			return errclass.Errorf(ErrInUse, "disk %s is in use: a virtual machine or another program writes it, so that a copy would be of no point in time: stop it, or read a snapshot or an NBD export of it", f.Name())
		}
	}
	return nil
}

// takeLock locks a byte. It returns false if the file system has no locks.
func takeLock(f *os.File, at int64) (bool, error) {
	return lockByte(f, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1})
}

// lockedByOthers reports whether somebody else has locked a byte.
func lockedByOthers(f *os.File, at int64) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
	has, err := lockByte(f, unix.F_OFD_GETLK, &l)
	return has && l.Type != unix.F_UNLCK, err
}

// lockByte sets or queries a lock. It returns false if the file system has no locks.
func lockByte(f *os.File, command int, l *unix.Flock_t) (bool, error) {
	err := unix.FcntlFlock(f.Fd(), command, l)
	if lacksLocks(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", f.Name(), os.NewSyscallError("fcntl", err))
	}
	return true, nil
}

// unlockFile releases the locks at once. Closing f is not enough: a child that this process is starting holds f open until
// its exec.
func unlockFile(f *os.File) {
	l := unix.Flock_t{Type: unix.F_UNLCK, Start: lockUsed, Len: lockDenied + permissions - lockUsed}
	_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l) // The file is closed next.
}

// lacksLocks reports whether the file system has no locks, or its lock server has none to give.
func lacksLocks(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}
