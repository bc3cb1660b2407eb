package domaintest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/domain/libvirtd"
	"github.com/varvebackup/varve/internal/layout"
)

// URI is the address of the libvirt that StartLibvirt starts: an ordinary user's, as in a launcher pod.
const URI = layout.LibvirtURI

// Libvirt is a running libvirtd.
type Libvirt struct {
	// command runs it, with environment. It listens at socket.
	command     []string
	environment []string
	socket      string
	// state is everything that it keeps, except its cache of QEMU's capabilities.
	state []string
	// prepare makes what it needs.
	prepare func() error

	cmd *exec.Cmd
	log bytes.Buffer
}

// StartLibvirt starts a libvirtd that knows no domain, as the launcher does: as the launcher's user, who has no
// capability and cannot get one. When the test ends, it ends libvirtd and every QEMU, and shows libvirtd's log if the
// test failed.
func StartLibvirt(tb testing.TB) *Libvirt {
	tb.Helper()
	user := fmt.Sprint(layout.LauncherUser)
	return startLibvirt(tb, &Libvirt{
		command: []string{
			"setpriv", "--reuid", user, "--regid", fmt.Sprint(layout.LauncherGroup), "--clear-groups",
			"--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs", "libvirtd",
		},
		environment: libvirtd.Environment(),
		socket:      layout.LibvirtRunDir + "/libvirt/libvirt-sock",
		state:       []string{layout.LibvirtRunDir, layout.LibvirtConfigDir},
		prepare: func() error {
			return errors.Join(libvirtd.Prepare(), GiveToLauncher(layout.LibvirtRunDir, layout.LibvirtCacheDir, layout.LibvirtConfigDir, layout.LibvirtConfigDir+"/libvirt"))
		},
	})
}

// HostURI is the address of the libvirt that StartHostLibvirt starts.
const HostURI = "qemu:///system"

// StartHostLibvirt starts a libvirtd as on a host: it is root, as is QEMU. What else it does is the same as with
// StartLibvirt.
func StartHostLibvirt(tb testing.TB) *Libvirt {
	tb.Helper()
	return startLibvirt(tb, &Libvirt{
		command: []string{"libvirtd"}, environment: os.Environ(), socket: "/run/libvirt/libvirt-sock",
		state:   []string{"/run/libvirt", "/var/lib/libvirt/qemu", "/etc/libvirt/qemu", "/var/log/libvirt"},
		prepare: configureHost,
	})
}

// configureHost makes what libvirt has on a host and in a launcher pod does not need: the accounts for QEMU that it
// insists on, and the setting that it should not use them.
func configureHost() error {
	const marker = "libvirt-qemu:"
	accounts, err := os.ReadFile("/etc/passwd")
	if err != nil || bytes.Contains(accounts, []byte(marker)) {
		return err
	}
	var errs []error
	for file, more := range map[string]string{
		"/etc/passwd":            marker + "x:64055:64055::/:/usr/sbin/nologin\n",
		"/etc/group":             marker + "x:64055:\n",
		"/etc/libvirt/qemu.conf": "user = \"root\"\ngroup = \"root\"\n",
	} {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(more)
			err = errors.Join(err, f.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// GiveToLauncher makes the launcher's user the owner of files and directories.
func GiveToLauncher(paths ...string) error {
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.Lchown(path, layout.LauncherUser, layout.LauncherGroup))
	}
	return errors.Join(errs...)
}

func startLibvirt(tb testing.TB, l *Libvirt) *Libvirt {
	tb.Helper()
	l.wipe(tb)
	l.start(tb)
	tb.Cleanup(func() {
		l.Kill(tb)
		killQEMU(tb)
		if tb.Failed() {
			tb.Logf("libvirtd said:\n%s", l.log.Bytes())
		}
	})
	return l
}

// wipe removes everything that libvirt knows about domains.
func (l *Libvirt) wipe(tb testing.TB) {
	tb.Helper()
	for _, dir := range l.state {
		if err := os.RemoveAll(dir); err != nil {
			tb.Fatal(err)
		}
	}
}

// Renew ends libvirtd and every QEMU with SIGKILL and starts a libvirtd that knows nothing, as in the next launcher pod.
func (l *Libvirt) Renew(tb testing.TB) {
	tb.Helper()
	l.Kill(tb)
	killQEMU(tb)
	l.wipe(tb)
	l.start(tb)
}

// Restart kills libvirtd and starts it again. QEMU keeps running.
func (l *Libvirt) Restart(tb testing.TB) {
	tb.Helper()
	l.Kill(tb)
	l.start(tb)
}

// Kill ends libvirtd with SIGKILL and waits for it.
func (l *Libvirt) Kill(tb testing.TB) {
	tb.Helper()
	if l.cmd == nil {
		return
	}
	if err := l.cmd.Process.Kill(); err != nil {
		tb.Errorf("kill libvirtd: %v", err)
	}
	_ = l.cmd.Wait() // it was killed, so an error is expected
	l.cmd = nil
	if err := os.Remove(l.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		tb.Errorf("remove libvirtd's socket: %v", err)
	}
}

func (l *Libvirt) start(tb testing.TB) {
	tb.Helper()
	if err := l.prepare(); err != nil {
		tb.Fatal(err)
	}
	l.cmd = exec.Command(l.command[0], append(slices.Clone(l.command[1:]), "--config", "/etc/libvirt/libvirtd.conf")...)
	l.cmd.Env, l.cmd.Stdout, l.cmd.Stderr = l.environment, &l.log, &l.log
	// A process group of its own, so that an interrupted test binary ends before its libvirtd does.
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := l.cmd.Start(); err != nil {
		tb.Fatalf("start libvirtd: %v", err)
	}
	eventually(tb, 20*time.Second, "libvirtd listens", func() bool {
		conn, err := net.Dial("unix", l.socket)
		return err == nil && conn.Close() == nil
	})
}

// QEMUPID returns the process ID of the only guest.
func QEMUPID(tb testing.TB) int {
	tb.Helper()
	pids := qemuPIDs(tb)
	if len(pids) != 1 {
		tb.Fatalf("%d guests run, not 1", len(pids))
	}
	return pids[0]
}

func qemuPIDs(tb testing.TB) []int {
	tb.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		tb.Fatal(err)
	}
	var out []int
	for _, file := range files {
		// The link of a process that has ended meanwhile is gone.
		exe, err := os.Readlink(file)
		if err != nil || !strings.HasPrefix(filepath.Base(exe), "qemu-system-") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, pid)
	}
	return out
}

// KillQEMU kills the only guest with SIGKILL and waits until it is gone.
func KillQEMU(tb testing.TB) {
	tb.Helper()
	QEMUPID(tb)
	killQEMU(tb)
}

func killQEMU(tb testing.TB) {
	tb.Helper()
	for _, pid := range qemuPIDs(tb) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			tb.Errorf("kill QEMU: %v", err)
		}
	}
	eventually(tb, 20*time.Second, "QEMU is gone", func() bool { return len(qemuPIDs(tb)) == 0 })
}

// GuestKernel returns the test guest's kernel and initial RAM disk.
func GuestKernel(tb testing.TB) (kernel, initrd string) {
	tb.Helper()
	kernel, initrd = GuestDir+"/vmlinux", GuestDir+"/initrd-test.img"
	for _, file := range []string{kernel, initrd} {
		if _, err := os.Stat(file); err != nil {
			tb.Fatalf("no test guest: run `make launcher-root guest`: %v", err)
		}
	}
	return kernel, initrd
}

// eventually waits until a condition holds, and fails the test if it does not hold in time. Tests have test/wait, which this package cannot import.
func eventually(tb testing.TB, within time.Duration, what string, holds func() bool) {
	tb.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			tb.Fatalf("not within %v: %s", within, what)
		}
	}
}
