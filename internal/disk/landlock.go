package disk

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// readable is the access that a program needs to its libraries.
	readable = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// guarded is every access that the first version of Landlock can refuse.
	guarded = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1
)

// pathRule is struct landlock_path_beneath_attr, which is packed.
type pathRule struct {
	access uint64
	parent int32
}

// restrictFiles lets this thread and its children open these files and what programs need, and no other file. It uses
// Landlock (Documentation/userspace-api/landlock.rst of the kernel).
func restrictFiles(program string, files []*os.File) error {
	if !programIn(program, systemDirectories) {
		return nil // Its libraries may be anywhere.
	}
	attributes := struct{ accessFS uint64 }{guarded}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes), 0)
	if errno != 0 {
		if isUnsupportedCall(errno) {
			return nil
		}
		return os.NewSyscallError("landlock_create_ruleset", errno)
	}
	defer unix.Close(int(fd)) //nolint:errcheck // nothing was written through it
	for _, dir := range systemDirectories {
		if err := allowPath(int(fd), dir, readable); err != nil {
			return err
		}
	}
	for _, file := range systemFiles {
		if err := allowPath(int(fd), file, unix.LANDLOCK_ACCESS_FS_READ_FILE|unix.LANDLOCK_ACCESS_FS_WRITE_FILE); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := allowFile(int(fd), f); err != nil {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return os.NewSyscallError("landlock_restrict_self", errno)
	}
	return nil
}

// allowPath allows access to what is at path, if anything is.
func allowPath(ruleset int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // not every system has it
	}
	defer unix.Close(fd) //nolint:errcheck // it only names the path
	return addRule(ruleset, fd, access)
}

// allowFile allows f to be opened again, for writing only if f is open for writing. A socket cannot be opened as a
// file.
func allowFile(ruleset int, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Mode().Type() == os.ModeSocket {
		return nil
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		return addRule(ruleset, int(f.Fd()), unix.LANDLOCK_ACCESS_FS_READ_FILE)
	}
	return addRule(ruleset, int(f.Fd()), unix.LANDLOCK_ACCESS_FS_READ_FILE|unix.LANDLOCK_ACCESS_FS_WRITE_FILE)
}

func addRule(ruleset, fd int, access uint64) error {
	rule := pathRule{access: access, parent: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), 1 /* LANDLOCK_RULE_PATH_BENEATH */, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_add_rule: %w", errno)
	}
	return nil
}
