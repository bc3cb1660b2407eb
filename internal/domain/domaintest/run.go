package domaintest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/layout"
)

// Environment variables of the inner processes.
const (
	stageVariable  = "VARVE_DOMAINTEST_STAGE"
	baseVariable   = "VARVE_DOMAINTEST_BASE"
	repoVariable   = "VARVE_DOMAINTEST_REPOSITORY"
	binaryVariable = "VARVE_DOMAINTEST_BINARY"
	stageInit      = "init"
	stageTests     = "tests"
)

// Run runs the tests inside the root and returns the exit code of the process.
func Run(m *testing.M) int { return runAs(m, nil) }

// RunAsLauncher does the same, as the launcher's user. Beyond it the tests may do what they need to set the stage:
// mount file systems, attach loop devices and change owners. libvirt and QEMU may not (StartLibvirt).
func RunAsLauncher(m *testing.M) int {
	return runAs(m, &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: layout.LauncherUser, Gid: layout.LauncherGroup},
		AmbientCaps: []uintptr{
			unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP,
			unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE,
		},
	})
}

func runAs(m *testing.M, who *syscall.SysProcAttr) int {
	var code int
	var err error
	switch os.Getenv(stageVariable) {
	case stageTests:
		return m.Run()
	case stageInit:
		code, err = runInit(os.Getenv(repoVariable), os.Getenv(baseVariable), who)
	default:
		code, err = runOutside()
	}
	if err != nil {
		report(os.Stderr, err)
		return 1
	}
	return code
}

func report(w io.Writer, err error) { _, _ = fmt.Fprintln(w, "domaintest:", err) } // nobody is left to report a failure to

// runOutside creates the directory for everything that the tests write and enters the namespaces.
func runOutside() (code int, err error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("these tests need root: they mount a root file system")
	}
	repo, err := repository()
	if err != nil {
		return 0, err
	}
	if _, err := os.Stat(filepath.Join(repo, rootDir, "usr/sbin/libvirtd")); err != nil {
		return 0, fmt.Errorf("no launcher root: run `make launcher-root guest`: %w", err)
	}
	base, err := os.MkdirTemp("", "varve-domaintest-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(base)) }()
	// The child dies with this thread, so the thread must live as long as the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	binary, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(binary, innerArgs(os.Args[1:])...)
	cmd.Env = append(os.Environ(), stageVariable+"="+stageInit, binaryVariable+"="+binary, baseVariable+"="+base, repoVariable+"="+repo)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	return exitCode(cmd.Run())
}

// innerArgs drops the log of opened files. It would name files of the root, and with it `go test` would cache results
// although root and guest may have changed.
func innerArgs(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, "-test.testlogfile=") })
}

// exitCode returns the exit code of a process that ended, or an error if it did not run or died of a signal.
func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if code := exit.ExitCode(); code >= 0 {
			return code, nil
		}
	}
	return 0, err
}

// repository returns the directory of go.mod, at or above the working directory.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the working directory")
		}
	}
}
