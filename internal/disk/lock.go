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

// What a lock's byte is about, as an offset to lockUsed and lockDenied.
const (
	reading  = 0
	writing  = 1
	resizing = 3
)

// lock says to QEMU, and to others that restore, that f is written by us alone, and refuses it if somebody else uses it.
func lock(f *os.File) error {
	for p := range int64(permissions) {
		for _, at := range []int64{lockUsed + p, lockDenied + p} {
			if has, err := takeLock(f, at); err != nil || !has {
				return err
			}
		}
	}
	return unused(f)
}

// unused refuses f as a target if somebody else uses it.
func unused(f *os.File) error {
	for p := range int64(permissions) {
		for _, at := range []int64{lockUsed + p, lockDenied + p} {
			locked, err := lockedByOthers(f, at)
			if err != nil {
				return err
			}
			if locked {
				return errorf(ErrConflict, "target %s is in use by a virtual machine, or another restore writes it: stop that first", f.Name())
			}
		}
	}
	return nil
}

// lockToRead says to QEMU, and to restores, that f is read and must not change, and refuses it if somebody writes it. Of a virtual machine
// that writes it nothing is said and asked if ignoreWriters says so.
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
	// A restore lets nobody read what it writes. A virtual machine does.
	locked, err := lockedByOthers(f, lockDenied+reading)
	if err != nil {
		return err
	}
	if locked {
		return errorf(ErrConflict, "disk %s is the target of a restore that runs: wait until it has ended", f.Name())
	}
	if ignoreWriters {
		return nil
	}
	for _, at := range []int64{lockUsed + writing, lockUsed + resizing} {
		if locked, err = lockedByOthers(f, at); err != nil {
			return err
		}
		if locked {
			return errorf(ErrInUse, "disk %s is in use: a virtual machine or another program writes it, so that a copy would be of no point in time: stop it, or read a snapshot or an NBD export of it", f.Name())
		}
	}
	return nil
}

// takeLock locks a byte. It says whether there are locks.
func takeLock(f *os.File, at int64) (bool, error) {
	return lockByte(f, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1})
}

// lockedByOthers says whether somebody else has locked a byte.
func lockedByOthers(f *os.File, at int64) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
	has, err := lockByte(f, unix.F_OFD_GETLK, &l)
	return has && l.Type != unix.F_UNLCK, err
}

// lockByte sets a lock, or asks for one, and says whether there are locks.
func lockByte(f *os.File, command int, l *unix.Flock_t) (bool, error) {
	err := unix.FcntlFlock(f.Fd(), command, l)
	if unlockable(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", f.Name(), os.NewSyscallError("fcntl", err))
	}
	return true, nil
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
