package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// firstDescriptor is the number of the first file that a child gets besides its standard input and outputs.
const firstDescriptor = 3

// descriptorPath returns the path by which a child opens the i-th file that it was given, whatever the file's own path
// leads to now.
func descriptorPath(i int) string { return fmt.Sprintf("/proc/self/fd/%d", firstDescriptor+i) }

// confined is a QEMU program that opens an image of unknown origin. It gets no environment, which may have passwords
// and keys. As far as the kernel can confine it, it can open no other file and no connection.
type confined struct {
	cmd   *exec.Cmd
	files []*os.File
	// ended is closed when the process is gone. err, its exit, is set before that.
	ended chan struct{}
	err   error
}

// newConfined prepares a program that gets files as descriptors, and opens them again by their descriptorPath.
func newConfined(ctx context.Context, name string, files []*os.File, args ...string) (*confined, error) {
	path, err := findProgram(name)
	if err != nil {
		return nil, err
	}
	c := &confined{cmd: exec.CommandContext(ctx, path, args...), files: files, ended: make(chan struct{})}
	c.cmd.Env = []string{} // nil would be this process' own
	c.cmd.ExtraFiles = files
	c.cmd.WaitDelay = time.Second
	c.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	return c, nil
}

// startProcess runs the program. The thread that starts it remains its parent, and the kernel sends the signal of SysProcAttr
// when that thread ends. The thread is confined with its child, and ends with it: no other goroutine ever runs on it.
func (c *confined) startProcess() error {
	started := make(chan error, 1)
	go func() {
		defer close(c.ended)
		runtime.LockOSThread() // and never unlocked
		err := confineThread(c.cmd.Path, c.files)
		if err == nil {
			err = c.cmd.Start()
		}
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
		}
	}()
	return <-started
}

// run runs the program to its end and returns its exit as an error.
func (c *confined) run() error {
	if err := c.startProcess(); err != nil {
		return err
	}
	<-c.ended
	return c.err
}

// hasEnded reports whether the program has ended.
func (c *confined) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// systemDirectories hold programs and libraries, and nothing secret.
var systemDirectories = []string{"/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store"}

// systemFiles are the other files that programs open when they start.
var systemFiles = []string{"/etc/ld.so.cache", "/dev/null", "/dev/urandom"}

// confineThread takes away from this thread, and from what it starts, everything that QEMU does not need to read an
// image. It is no failure if the kernel lacks the means: the check that QEMU opens only the files that it is given does
// not depend on them.
func confineThread(program string, files []*os.File) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil //nolint:nilerr // a kernel without it has none of what follows
	}
	if err := restrictFiles(program, files); err != nil {
		return fmt.Errorf("confine %s: %w", program, err)
	}
	if err := refuseSockets(); err != nil {
		return fmt.Errorf("confine %s: %w", program, err)
	}
	return nil
}

// programIn reports whether the program lies in one of the directories.
func programIn(program string, directories []string) bool {
	path, err := filepath.EvalSymlinks(program)
	return err == nil && slices.ContainsFunc(directories, func(d string) bool { return strings.HasPrefix(path, d+"/") })
}

// isUnsupportedCall reports whether the kernel lacks a system call, or has it switched off.
func isUnsupportedCall(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM)
}
