package domaintest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/layout"
)

// Paths in the repository.
const (
	rootDir  = "build/launcher-root"
	guestDir = "build/guest"
)

// Paths inside the root.
const (
	// GuestDir has the test guest's kernel and initial RAM disk.
	GuestDir = "/guest"
	// repositoryDir is the repository, read-only.
	repositoryDir = "/repository"
	testBinary    = "/package.test"
)

// runInit is process 1: it builds the root, starts the tests in it as who says, and reaps orphans.
func runInit(repo, base string, who *syscall.SysProcAttr) (int, error) {
	work, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	packageDir, err := filepath.Rel(repo, work)
	if err != nil {
		return 0, err
	}
	root, err := buildRoot(repo, base)
	if err != nil {
		return 0, fmt.Errorf("build the root: %w", err)
	}
	if err := makeLauncherPlaces(root); err != nil {
		return 0, err
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir(filepath.Join(repositoryDir, packageDir))); err != nil {
		return 0, fmt.Errorf("enter the root: %w", err)
	}
	cmd := exec.Command(testBinary, os.Args[1:]...)
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=/tmp", "LC_ALL=C", stageVariable + "=" + stageTests,
	}
	cmd.SysProcAttr = who
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return reapUntil(cmd.Process.Pid)
}

// reapUntil reaps every process that falls to process 1 until the process pid ends. QEMU is among them: libvirt takes
// a QEMU that is not reaped for one that does not die.
func reapUntil(pid int) (int, error) {
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, os.NewSyscallError("wait4", err)
		case ended == pid && status.Signaled():
			return 0, fmt.Errorf("the tests died of %s", status.Signal())
		case ended == pid && status.Exited():
			return status.ExitStatus(), nil
		}
	}
}

// buildRoot mounts everything that the tests see and returns the path of the root.
func buildRoot(repo, base string) (string, error) {
	lower, err := filepath.EvalSymlinks(filepath.Join(repo, rootDir))
	if err != nil {
		return "", err
	}
	in := func(name string) string { return filepath.Join(base, name) }
	for _, dir := range []string{"upper", "overlay", "root", "tmp"} {
		if err := os.Mkdir(in(dir), 0o755); err != nil {
			return "", err
		}
	}
	// Mounts from here on are not visible outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", os.NewSyscallError("make mounts private", err)
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, in("upper"), in("overlay"))
	if err := unix.Mount("overlay", in("root"), "overlay", 0, layers); err != nil {
		return "", fmt.Errorf("mount overlay (%s): %w", layers, err)
	}
	root := in("root")
	return root, errors.Join(
		mountAt(root, "proc", "/proc", "proc", 0),
		mountAt(root, "tmpfs", "/run", "tmpfs", 0),
		bind(root, "/dev", "/dev", unix.MS_REC),
		bind(root, "/sys", "/sys", unix.MS_REC),
		bind(root, in("tmp"), "/tmp", 0),
		bindReadOnly(root, repo, repositoryDir),
		bindGuest(root, filepath.Join(repo, guestDir)),
		bindFile(os.Getenv(binaryVariable), filepath.Join(root, testBinary)),
		bindResults(root, os.Args[1:]),
	)
}

// makeLauncherPlaces makes what a launcher pod has: a directory of its own, and /tmp for everybody.
func makeLauncherPlaces(root string) error {
	private := filepath.Join(root, layout.PrivateDir)
	return errors.Join(os.MkdirAll(private, 0o755), GiveToLauncher(private), os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky))
}

func mountAt(root, source, target, kind string, flags uintptr) error {
	dir := filepath.Join(root, target)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, dir, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

func bind(root, source, target string, flags uintptr) error {
	return mountAt(root, source, target, "", unix.MS_BIND|flags)
}

func bindReadOnly(root, source, target string) error {
	if err := bind(root, source, target, 0); err != nil {
		return err
	}
	return mountAt(root, "", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY)
}

// bindGuest mounts the guest's files, if they are built. A test that needs them reports their absence (GuestKernel).
// Each may be a link to a place outside the root.
func bindGuest(root, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, GuestDir), 0o755); err != nil {
		return err
	}
	for _, entry := range entries {
		if err := bindFile(filepath.Join(dir, entry.Name()), filepath.Join(root, GuestDir, entry.Name())); err != nil {
			return fmt.Errorf("bind the guest's %s: %w", entry.Name(), err)
		}
	}
	return nil
}

// bindFile mounts source, or the file that it links to, at target, read-only.
func bindFile(source, target string) error {
	source, err := filepath.EvalSymlinks(source)
	if err != nil {
		return err
	}
	if err := os.WriteFile(target, nil, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	return os.NewSyscallError("mount read-only", unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// bindResults mounts the directories into which `go test` told the binary to write profiles.
func bindResults(root string, args []string) error {
	for _, arg := range args {
		flag, value, _ := strings.Cut(arg, "=")
		if !filepath.IsAbs(value) || !strings.HasPrefix(flag, "-test.") {
			continue
		}
		dir := value
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			dir = filepath.Dir(dir)
		}
		if err := bind(root, dir, dir, 0); err != nil {
			return err
		}
	}
	return nil
}
